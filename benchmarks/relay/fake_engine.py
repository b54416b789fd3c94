"""An engine without a model, on the engine's side of the socket: every request gets a token each tick.

python benchmarks/relay/fake_engine.py ADDRESS INTERVAL_MS MAX_MODEL_LEN TOKEN_IDS_FILE
"""

import json
import sys
import time
from pathlib import Path

import zmq

from octavo.engine import messages
from octavo.records import EngineInfo, EngineOutput, EngineStats, RequestTimes, StepOutputs


def main() -> None:
    """Serve until the frontend is gone."""
    address, interval = sys.argv[1], float(sys.argv[2]) / 1000
    max_model_len, text = int(sys.argv[3]), json.loads(Path(sys.argv[4]).read_text(encoding="utf-8"))
    socket = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, b"engine-1")
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(address)
    info = EngineInfo(max_model_len, max(text) + 1, 1000, 16, 1024, True)
    socket.send(messages.encode(messages.Ready(1, info, EngineStats())))
    remaining: dict[str, int] = {}
    new: list[str] = []
    next_tick = time.perf_counter()
    tick = 0
    stats = EngineStats()
    while True:
        timeout = max(0, int((next_tick - time.perf_counter()) * 1000)) if remaining or new else 1000
        if socket.poll(timeout):
            message = messages.decode_to_engine(socket.recv())
            if isinstance(message, messages.Add):
                for request in message.requests:
                    remaining[request.request_id] = request.params.max_tokens or 1
                    new.append(request.request_id)
            elif isinstance(message, messages.Abort):
                for request_id in message.request_ids:
                    remaining.pop(request_id, None)
            continue
        if time.perf_counter() < next_tick or not remaining:
            continue
        next_tick = max(next_tick + interval, time.perf_counter() - interval)
        tick += 1
        token = text[tick % len(text)]
        first = {request_id for request_id in new if request_id in remaining}
        new.clear()
        ending = {request_id for request_id, left in remaining.items() if left == 1}
        plain = [request_id for request_id in remaining if request_id not in first and request_id not in ending]
        now = time.time()
        others = [
            EngineOutput(
                request_id,
                [token],
                finish_reason="length" if request_id in ending else None,
                num_cached_tokens=0,
                times=RequestTimes(now, now, now, now),
            )
            for request_id in (*first, *(ending - first))
        ]
        for request_id in list(remaining):
            remaining[request_id] -= 1
            if not remaining[request_id]:
                del remaining[request_id]
        outputs = StepOutputs(plain, [token] * len(plain), others)
        socket.send(messages.encode(messages.OutputBatch(1, outputs, stats)))


if __name__ == "__main__":
    main()
