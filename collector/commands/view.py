"""`rankscope view`: hand a merged timeline, or any trace, to a Perfetto in the browser."""

import argparse
from pathlib import Path
from typing import Final

from rankscope.collector.reports.trace_cells import printable

PERFETTO: Final = "https://ui.perfetto.dev"


class View:
    """Serve a page on this machine that hands one trace file to Perfetto."""

    name = "view"
    summary = "open a timeline of `merge`, or another trace, in Perfetto"
    example = (
        "rankscope view merged.json.gz                                        print the address of a page to click on\n"
        "rankscope view merged.json.gz --perfetto http://perfetto.intra/      a Perfetto of your own\n"
        "rankscope view merged.json.gz --print                                only say how to open it by hand"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the file, the Perfetto and the port."""
        parser.add_argument("file", type=Path, metavar="FILE", help="the trace to open")
        parser.add_argument(
            "--perfetto", default=PERFETTO, metavar="URL", help=f"the Perfetto that the page opens [{PERFETTO}]"
        )
        parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 [a free one]")
        parser.add_argument("--print", action="store_true", help="only say how to open the file by hand; serve nothing")

    def run(self, options: argparse.Namespace) -> int:
        """Serve until Ctrl-C, and return 0. Raises SettingError and UnavailableError."""
        from rankscope.collector.reports.view_server import (  # noqa: PLC0415 - no other command needs it
            ViewServer,
            check_perfetto,
            describe_size,
            read_size,
        )

        perfetto, size = check_perfetto(options.perfetto), describe_size(read_size(options.file))
        if options.print:
            print(describe_by_hand(options.file, size, perfetto))
            return 0
        with ViewServer(options.file, perfetto=perfetto, port=options.port) as server:
            print(
                f"{server.url}\nOpen this address in a browser; its button opens {perfetto} and hands it "
                f"{printable(options.file.name)} ({size}) inside the browser."
            )
            print("Ctrl-C ends it.", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return 0
        return 0


def describe_by_hand(file: Path, size: str, perfetto: str) -> str:
    """Return how to open a trace without a page: by a file dialog, or with Perfetto's own program if it is large."""
    return (
        f"Open {perfetto}, choose `Open trace file`, and select {printable(str(file.absolute()))} ({size}).\n"
        "Where that is too large for the browser: `trace_processor --httpd FILE`, which is part of Perfetto,\n"
        "reads it in a program of its own, and Perfetto's page asks whether to use that."
    )
