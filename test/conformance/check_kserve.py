"""Drives a server with KServe's own clients. Usage: check_kserve.py HTTP_HOST:PORT GRPC_HOST:PORT

Prints one line for each check, `ok NAME` or `not ok NAME: REASON`. Models expected: as for check_tritonclient.py.
"""

import asyncio
import logging
import sys
import traceback

import grpc
import httpx
import numpy as np
from kserve import InferInput, InferRequest
from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

HTTP_URL, GRPC_URL = f"http://{sys.argv[1]}", sys.argv[2]
RNG = np.random.default_rng(11)
DTYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
# The client reports every error of gRPC itself, with its stack.
logging.disable(logging.CRITICAL)


async def check(name, act):
    try:
        await act()
        print(f"ok {name}", flush=True)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1].lineno
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"not ok {name}: {reason} (line {where})", flush=True)


def equal(actual, expected, what="value"):
    assert actual == expected, f"{what} is {actual!r}, not {expected!r}"


def sample(datatype, rows):
    shape = (rows, 4)
    if datatype == "BOOL":
        return RNG.integers(0, 2, size=shape).astype(np.bool_)
    if datatype.startswith("FP"):
        return RNG.normal(size=shape).astype(DTYPES[datatype])
    info = np.iinfo(DTYPES[datatype])
    return RNG.integers(info.min, info.max, size=shape, dtype=DTYPES[datatype], endpoint=True)


def words(rows):
    texts = ["", "one", "zwei", "trois — 3"] * rows
    return np.array([text.encode() for text in texts], dtype=np.object_).reshape(rows, 4)


def tensor(name, datatype, data, binary):
    made = InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


def simple(rows, binary, **request):
    a = RNG.integers(-100, 100, size=(rows, 16)).astype(np.int32)
    b = RNG.integers(-100, 100, size=(rows, 16)).astype(np.int32)
    inputs = [tensor("INPUT0", "INT32", a, binary), tensor("INPUT1", "INT32", b, binary)]
    return InferRequest("simple", inputs, **request), {"OUTPUT0": a + b, "OUTPUT1": a - b}


def same(response, expected):
    equal(sorted(output.name for output in response.outputs), sorted(expected), "the outputs")
    for name, value in expected.items():
        actual = response.get_output_by_name(name).as_numpy()
        assert np.array_equal(actual, value), f"{name} is {actual!r}, not {value!r}"


async def names_of(http, model):
    metadata = (await http.get(f"{HTTP_URL}/v2/models/{model}")).json()
    return metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]


async def rest():
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=30))
    raw = httpx.AsyncClient()

    async def health():
        equal(await client.is_server_live(HTTP_URL), True, "live")
        equal(await client.is_server_ready(HTTP_URL), True, "ready")
        equal(await client.is_model_ready(HTTP_URL, "simple"), True, "ready")
        equal(await client.is_model_ready(HTTP_URL, "late"), False, "ready")

    await check("REST: health", health)

    def run(rows, binary):
        async def act():
            request, expected = simple(rows, binary, request_id="seven", parameters={"note": "is passed over"})
            headers = {}
            response = await client.infer(HTTP_URL, request, model_name="simple", response_headers=headers)
            equal(response.id, "seven", "id")
            equal(response.model_name, "simple", "model")
            same(response, expected)

        return act

    for rows in (1, 4, 9):
        for binary in (False, True):
            await check(f"REST: {rows} rows, {'binary' if binary else 'JSON'}", run(rows, binary))

    async def some_outputs():
        request, expected = simple(2, True, request_outputs=[RequestedOutput("OUTPUT1", {"binary_data": True})])
        response = await client.infer(HTTP_URL, request, model_name="simple")
        same(response, {"OUTPUT1": expected["OUTPUT1"]})

    await check("REST: one output, binary", some_outputs)

    def identity(datatype, binary):
        async def act():
            model = f"rows_{datatype.lower()}"
            source, result = await names_of(raw, model)
            data = words(3) if datatype == "BYTES" else sample(datatype, 3)
            outputs = [RequestedOutput(result, {"binary_data": True})] if binary else None
            request = InferRequest(model, [tensor(source, datatype, data, binary)], request_outputs=outputs)
            response = await client.infer(HTTP_URL, request, model_name=model)
            expected = data
            if datatype == "BYTES":
                # Over REST this client takes all bytes for text.
                expected = np.array([word.decode() for word in data.flat], dtype=np.object_).reshape(data.shape)
            same(response, {result: expected})

        return act

    for datatype in (*DTYPES, "BYTES"):
        # FP16 has no form in JSON.
        if datatype != "FP16":
            await check(f"REST: {datatype}, JSON", identity(datatype, False))
        await check(f"REST: {datatype}, binary", identity(datatype, True))

    async def refused():
        request, _ = simple(1, False)
        try:
            await client.infer(HTTP_URL, request, model_name="nothing")
            raise AssertionError("an unknown model answered")
        except httpx.HTTPStatusError as error:
            equal(error.response.status_code, 404, "status")
            assert "nothing" in str(error), error
        request, _ = simple(1, True)
        request.inputs[0].shape = [1, 17]
        try:
            await client.infer(HTTP_URL, request, model_name="simple")
            raise AssertionError("a wrong shape was taken")
        except httpx.HTTPStatusError as error:
            equal(error.response.status_code, 400, "status")
            assert "INPUT0" in str(error), error

    await check("REST: errors", refused)

    async def together():
        requests = [simple(1 + n % 4, n % 2 == 0) for n in range(64)]
        calls = (client.infer(HTTP_URL, request, model_name="simple") for request, _ in requests)
        for response, (_, expected) in zip(await asyncio.gather(*calls), requests):
            same(response, expected)

    await check("REST: 64 requests at once", together)
    await client.close()
    await raw.aclose()


async def rpc():
    client = InferenceGRPCClient(GRPC_URL, timeout=30)
    raw = httpx.AsyncClient()

    async def health():
        equal(await client.is_server_live(), True, "live")
        equal(await client.is_server_ready(), True, "ready")
        equal(await client.is_model_ready("simple"), True, "ready")
        equal(await client.is_model_ready("late"), False, "ready")

    await check("gRPC: health", health)

    def run(rows, binary):
        async def act():
            request, expected = simple(rows, binary, request_id="seven")
            response = await client.infer(request)
            equal(response.id, "seven", "id")
            same(response, expected)

        return act

    for rows in (1, 4, 9):
        for binary in (False, True):
            await check(f"gRPC: {rows} rows, {'raw' if binary else 'typed'} contents", run(rows, binary))

    def identity(datatype, binary):
        async def act():
            model = f"rows_{datatype.lower()}"
            source, result = await names_of(raw, model)
            data = words(3) if datatype == "BYTES" else sample(datatype, 3)
            response = await client.infer(InferRequest(model, [tensor(source, datatype, data, binary)]))
            same(response, {result: data})

        return act

    for datatype in (*DTYPES, "BYTES"):
        if datatype != "FP16":
            await check(f"gRPC: {datatype}, typed contents", identity(datatype, False))
        await check(f"gRPC: {datatype}, raw contents", identity(datatype, True))

    async def refused():
        request, _ = simple(1, True)
        request.model_name = "nothing"
        try:
            await client.infer(request)
            raise AssertionError("an unknown model answered")
        except grpc.RpcError as error:
            equal(error.code(), grpc.StatusCode.NOT_FOUND, "code")

    await check("gRPC: errors", refused)
    await client.close()
    await raw.aclose()


asyncio.run(rest())
asyncio.run(rpc())
