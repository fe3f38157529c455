"""Runs under the Python of openpi's own client: a server of one of the protocols, for a few requests.

Arguments: openpi or gr00t. Prints its port, then a JSON line for each request. Its answer is a function of the request,
so that a value that is lost on the way changes the actions.

`openpi`: its server is not on PyPI; its messages are packed and unpacked by openpi-client's msgpack_numpy, as there.
`gr00t`: written from gr00t/policy/server_client.py and gr00t_policy.py of NVIDIA/Isaac-GR00T, of which there is no
package: the same messages, and the same checks of an observation.
"""

import io
import json
import sys

import msgpack
import numpy as np

ROWS, WIDTH = 6, 7


def told(**words):
    print(json.dumps(words), flush=True)  # noqa: T201


def actions(joints, image):
    """(6, 7): the joints, plus the index of the row, plus a sum of the pixels by their places."""
    weights = np.arange(image.size).reshape(image.shape) % 251
    return joints[None] + np.arange(ROWS)[:, None] + float((image * weights).sum() % 1024)


def serve_openpi():
    import websockets.sync.server
    from openpi_client import msgpack_numpy

    def converse(connection):
        connection.send(msgpack_numpy.packb({"robot": "panda", "reset_pose": [0.0, np.float32(1.5)]}))
        for data in connection:
            request = msgpack_numpy.unpackb(data)
            joints, image = request["observation/joint_position"], request["observation/front"]
            told(
                keys=sorted(request),
                prompt=request["prompt"],
                image=[str(image.dtype), *image.shape],
                joints=[str(joints.dtype), *joints.shape],
            )
            answer = {"actions": actions(joints, image), "server_timing": {"infer_ms": np.float64(1.0)}}
            connection.send(msgpack_numpy.packb(answer))

    with websockets.sync.server.serve(converse, "127.0.0.1", 0, compression=None, max_size=None) as server:
        told(port=server.socket.getsockname()[1])
        server.serve_forever()


class Settings:
    """ModalityConfig, of which a client reads these."""

    def __init__(self, *keys):
        self.values = {"delta_indices": [0], "modality_keys": list(keys), "action_configs": None}


def pack(value):
    def encode(each):
        if isinstance(each, Settings):
            return {"__ModalityConfig_class__": True, "as_json": each.values}
        file = io.BytesIO()
        np.save(file, each, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}

    return msgpack.packb(value, default=encode)


def unpack(data):
    def decode(each):
        return np.load(io.BytesIO(each["as_npy"]), allow_pickle=False) if "__ndarray_class__" in each else each

    return msgpack.unpackb(data, object_hook=decode)


def get_action(observation, options):
    """What Gr00tPolicy checks and answers."""
    image, joints = observation["video"]["front"], observation["state"]["joint_position"]
    text = observation["language"]["annotation.human.action.task_description"]
    assert image.dtype == np.uint8
    assert image.ndim == 5
    assert image.shape[:2] == (1, 1)
    assert image.shape[-1] == 3
    assert joints.dtype == np.float32
    assert joints.ndim == 3
    assert joints.shape[:2] == (1, 1)
    assert isinstance(text, list)
    assert isinstance(text[0], list)
    assert len(text[0]) == 1
    told(
        keys=sorted(f"{modality}/{key}" for modality, values in observation.items() for key in values),
        prompt=text[0][0],
        image=[str(image.dtype), *image.shape[2:]],
        joints=[str(joints.dtype), *joints.shape[2:]],
    )
    return {"action": actions(joints[0, 0], image[0, 0])[None].astype(np.float32)}, {}


def serve_gr00t():
    import zmq

    settings = {
        "video": Settings("front"),
        "state": Settings("joint_position"),
        "action": Settings("action"),
        "language": Settings("annotation.human.action.task_description"),
    }
    endpoints = {"ping": lambda: {"status": "ok"}, "get_modality_config": lambda: settings, "get_action": get_action}
    socket = zmq.Context().socket(zmq.REP)
    told(port=socket.bind_to_random_port("tcp://127.0.0.1"))
    while True:
        request = unpack(socket.recv())
        if request.get("api_token") != "secret":
            socket.send(pack({"error": "Unauthorized: Invalid API token"}))
            continue
        try:
            socket.send(pack(endpoints[request["endpoint"]](**request.get("data", {}))))
        except Exception as error:
            socket.send(pack({"error": str(error)}))


{"openpi": serve_openpi, "gr00t": serve_gr00t}[sys.argv[1]]()
