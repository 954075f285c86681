"""`rankscope notify` sends its test to a receiver of OTLP whatever the address of the HTTP server is."""

from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from tests.otlp_receivers import read_attributes, receiving_http


@pytest.mark.parametrize(("listen", "port"), [("127.0.0.1:*", ""), ("[::1]:0", ""), ("*:18491", "18491")])
def test_record_is_sent_whatever_the_port_is(
    listen: str, port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with receiving_http() as receiver:
        config = tmp_path / "collector.toml"
        config.write_text(f'http_listen = "{listen}"\notlp = true\notlp_endpoint = "{receiver.url}"\n')
        assert main(["notify", "--config", str(config)]) == 0
        (request,) = receiver.received.logs
    assert capsys.readouterr().out == "otlp: delivered\n"
    attributes = read_attributes(request.resource_logs[0].resource.attributes)
    # Where the port is not known the SDK makes an id that is no address.
    assert str(attributes["service.instance.id"]).partition(":")[2] == port
