"""Replies of the shell channel: sent in the call, in order, and no request is overlooked for it."""

from __future__ import annotations

import asyncio

import zmq

from agently_kernel.iopub_socket import ReplyStream

REQUESTS = 300


async def test_replies_go_out_at_once_in_order_and_every_request_is_read() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as client:
        client.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        stream = ReplyStream(router)
        seen: list[bytes] = []
        everything = asyncio.get_running_loop().create_future()

        def take(message: list[bytes]) -> None:
            identity, text = message
            # Requests keep coming while this sends: the loop's descriptor tells of each of them once only.
            if len(seen) < REQUESTS - 1:
                client.send(b"%d" % (len(seen) + 1))
            for part in (b"a", b"b"):
                stream.send_multipart([identity, text + part])
            assert not stream.sending()
            seen.append(text)
            if len(seen) == REQUESTS and not everything.done():
                everything.set_result(None)

        stream.on_recv(take)
        client.send(b"0")
        await asyncio.wait_for(everything, 30)
        assert seen == [b"%d" % number for number in range(REQUESTS)]
        answers = []
        while len(answers) < 2 * REQUESTS:
            assert client.poll(5000)
            answers.append(client.recv())
        assert answers == [b"%d" % number + part for number in range(REQUESTS) for part in (b"a", b"b")]
        stream.close()
