"""A collector that orders a capture and kills itself once its ranks have accepted. Arguments: endpoint, store, run."""

import os
import signal
import sys
import threading

from rankscope.collector.captures.capture import RECORDING, CaptureRequest
from rankscope.collector.config import CollectorConfig
from rankscope.collector.service import Service
from rankscope.measure.clock import SystemClock

endpoint, store, run = sys.argv[1:]
service = Service(CollectorConfig(listen=endpoint, http_listen="127.0.0.1:0", store=store, tick_s=0.1), SystemClock())
print("endpoint", service.endpoint, flush=True)
threading.Thread(target=service.run, daemon=True).start()
pause = threading.Event()
while not service.captures.captures or service.captures.captures[0].state != RECORDING:
    if not service.captures.captures:
        service.captures.order(CaptureRequest(run=run, ranks=(1, 3), steps=5))
    pause.wait(0.02)
os.kill(os.getpid(), signal.SIGKILL)
