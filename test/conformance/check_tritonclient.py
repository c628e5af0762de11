"""Drives a server with tritonclient, in all of its flavours. Usage: check_tritonclient.py HTTP_HOST:PORT GRPC_HOST:PORT

Prints one line for each check, `ok NAME` or `not ok NAME: REASON`. Models expected: identities of rows of four elements, `rows_<datatype>`, with input and output of any
names; `simple` (sum and difference); `lookup`, whose run fails for an index of 99; `late`, which is not loaded; `labelled`, an identity with
labels for its first two classes.
"""

import asyncio
import os
import queue
import sys
import traceback

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, triton_to_np_dtype

HTTP_URL, GRPC_URL = sys.argv[1:3]
RNG = np.random.default_rng(7)


def check(name, act):
    try:
        act()
        print(f"ok {name}", flush=True)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1].lineno
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"not ok {name}: {reason} (line {where})", flush=True)


def equal(actual, expected, what="value"):
    assert actual == expected, f"{what} is {actual!r}, not {expected!r}"


def sample(datatype, rows):
    shape = (rows, 4)
    if datatype == "BYTES":
        words = [bytes(RNG.integers(0, 256, size=n, dtype=np.uint8)) for n in range(rows * 4)]
        return np.array(words, dtype=np.object_).reshape(shape)
    if datatype == "BOOL":
        return RNG.integers(0, 2, size=shape).astype(np.bool_)
    if datatype.startswith(("FP", "BF")):
        return RNG.normal(size=shape).astype(triton_to_np_dtype(datatype))
    info = np.iinfo(triton_to_np_dtype(datatype))
    return RNG.integers(info.min, info.max, size=shape, dtype=triton_to_np_dtype(datatype), endpoint=True)


def inputs_of(module, tensors, binary=True):
    inputs = []
    for name, (datatype, data) in tensors.items():
        tensor = module.InferInput(name, list(data.shape), datatype)
        if module is httpclient:
            tensor.set_data_from_numpy(data, binary_data=binary)
        else:
            tensor.set_data_from_numpy(data)
        inputs.append(tensor)
    return inputs


def simple(rows):
    a = RNG.integers(-100, 100, size=(rows, 16)).astype(np.int32)
    b = RNG.integers(-100, 100, size=(rows, 16)).astype(np.int32)
    return {"INPUT0": ("INT32", a), "INPUT1": ("INT32", b)}, {"OUTPUT0": a + b, "OUTPUT1": a - b}


def same(result, expected):
    for name, value in expected.items():
        actual = result.as_numpy(name)
        assert np.array_equal(actual, value), f"{name} is {actual!r}, not {value!r}"


http = httpclient.InferenceServerClient(HTTP_URL, concurrency=4)
grpc = grpcclient.InferenceServerClient(GRPC_URL)


def health(client):
    for state in (client.is_server_live(), client.is_server_ready(), client.is_model_ready("simple")):
        equal(state, True, "state")
    equal(client.is_model_ready("simple", "1"), True, "state")
    equal(client.is_model_ready("late"), False, "state of what is not loaded")


def metadata(client):
    server = client.get_server_metadata()
    named = server["name"] if isinstance(server, dict) else server.name
    equal(named, "batchport", "server")
    for model in ("simple", "lookup"):
        client.get_model_metadata(model)
        client.get_model_config(model)


def identity_http(datatype, binary):
    model = f"rows_{datatype.lower()}"
    about = http.get_model_metadata(model)
    source, target = about["inputs"][0]["name"], about["outputs"][0]["name"]
    equal(about["inputs"][0]["datatype"], datatype, "datatype")
    data = sample(datatype, 3)
    if datatype == "BYTES" and not binary:
        # The client gives texts back as such.
        data = np.array([f"é{n}" for n in range(12)], dtype=np.object_).reshape(3, 4)
    outputs = [httpclient.InferRequestedOutput(target, binary_data=binary)]
    inputs = inputs_of(httpclient, {source: (datatype, data)}, binary)
    same(http.infer(model, inputs, outputs=outputs), {target: data})


def identity_grpc(datatype):
    model = f"rows_{datatype.lower()}"
    about = grpc.get_model_metadata(model)
    source, target = about.inputs[0].name, about.outputs[0].name
    data = sample(datatype, 3)
    same(grpc.infer(model, inputs_of(grpcclient, {source: (datatype, data)})), {target: data})


def compressed(algorithm):
    tensors, expected = simple(3)
    result = http.infer(
        "simple",
        inputs_of(httpclient, tensors),
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    same(result, expected)


def concurrent_http():
    asked = [simple(rows) for rows in (1, 2, 3, 4)]
    pending = [http.async_infer("simple", inputs_of(httpclient, tensors)) for tensors, _ in asked]
    for one, (_, expected) in zip(pending, asked):
        same(one.get_result(), expected)


def callbacks_grpc():
    answers = queue.Queue()
    tensors, expected = simple(2)
    for _ in range(4):
        grpc.async_infer("simple", inputs_of(grpcclient, tensors), lambda result, error: answers.put((result, error)))
    for _ in range(4):
        result, error = answers.get(timeout=30)
        assert error is None, error
        same(result, expected)


def stream():
    answers = queue.Queue()
    client = grpcclient.InferenceServerClient(GRPC_URL)
    client.start_stream(lambda result, error: answers.put((result, error)))
    asked = [simple(rows) for rows in (1, 5, 2)]
    for n, (tensors, _) in enumerate(asked):
        client.async_stream_infer(
            "simple", inputs_of(grpcclient, tensors), request_id=str(n), enable_empty_final_response=True
        )
    for n, (_, expected) in enumerate(asked):
        result, error = answers.get(timeout=30)
        assert error is None, error
        equal(result.get_response().id, str(n), "id")
        same(result, expected)
    client.stop_stream()
    client.close()


def refused(act, *texts):
    try:
        act()
    except InferenceServerException as error:
        for text in texts:
            assert text in str(error), f"{error} has no {text!r}"
        return
    raise AssertionError("it was not refused")


def failures(client, module):
    bad = {"index": ("INT64", np.array([99], dtype=np.int64))}
    refused(lambda: client.infer("lookup", inputs_of(module, bad)), "out of data bounds")
    refused(lambda: client.infer("nope", inputs_of(module, bad)), "unknown model")
    tensors, _ = simple(1)
    del tensors["INPUT1"]
    refused(lambda: client.infer("simple", inputs_of(module, tensors)), "expected 2 inputs but got 1")


def options(client, module):
    tensors, expected = simple(2)
    outputs = [module.InferRequestedOutput("OUTPUT1")]
    result = client.infer(
        "simple", inputs_of(module, tensors), "1", outputs, request_id="my id", priority=1, timeout=30_000_000
    )
    same(result, {"OUTPUT1": expected["OUTPUT1"]})
    response = result.get_response()
    equal(response["id"] if isinstance(response, dict) else response.id, "my id", "id")
    equal(result.as_numpy("OUTPUT0"), None, "an output that was not asked for")


def classification(client, module):
    x = np.array([[0.25, 4, -1, 3], [1, 1, 0, 2]], dtype=np.float32)
    result = client.infer(
        "labelled",
        inputs_of(module, {"x": ("FP32", x)}),
        outputs=[module.InferRequestedOutput("y", class_count=3)],
    )
    expected = [["4:1:one", "3:3", "0.25:0:zero"], ["2:3", "1:0:zero", "1:1:one"]]
    equal([[text.decode() for text in row] for row in result.as_numpy("y")], expected, "classes")


def statistics(client):
    told = client.get_inference_statistics("simple")
    rows = told["model_stats"][0]["inference_count"] if isinstance(told, dict) else told.model_stats[0].inference_count
    assert int(rows) > 0, rows


def control(client):
    client.load_model("late")
    equal(client.is_model_ready("late"), True, "state after the load")
    client.unload_model("late")
    equal(client.is_model_ready("late"), False, "state after the unload")
    refused(lambda: client.load_model("nope"), "failed to load 'nope'")
    client.load_model("late", config='{"slo_ms": 4321}')
    config = client.get_model_config("late")
    if isinstance(config, dict):
        equal(config["slo_ms"], 4321, "slo_ms")
    client.unload_model("late")
    index = client.get_model_repository_index()
    names = [one["name"] for one in index] if isinstance(index, list) else [one.name for one in index.models]
    assert "late" in names and "simple" in names, names


def logging(client):
    before = client.get_log_settings(as_json=True) if client is grpc else client.get_log_settings()
    assert before, before
    wanted = {"log_info": False, "log_warning": True, "log_error": True, "log_verbose_level": 1, "log_format": "ISO8601"}
    after = client.update_log_settings(wanted, as_json=True) if client is grpc else client.update_log_settings(wanted)
    told = {key: list(value.values())[0] for key, value in after["settings"].items()} if client is grpc else after
    for key, value in wanted.items():
        camel = {"log_verbose_level": "log_verbose_level"}.get(key, key)
        equal(told[camel], value, key)
    refused(lambda: client.update_log_settings({"log_file": "/tmp/x"}), "cannot be updated")
    client.update_log_settings({"log_info": True, "log_verbose_level": 0})


async def asynchronous(module, url):
    async with module.InferenceServerClient(url) as client:
        equal(await client.is_server_ready(), True, "state")
        asked = [simple(rows) for rows in (1, 2, 7)]
        flavour = httpclient if module is httpaio else grpcclient
        results = await asyncio.gather(*(client.infer("simple", inputs_of(flavour, tensors)) for tensors, _ in asked))
        for result, (_, expected) in zip(results, asked):
            same(result, expected)


def shared(client, module, datatype):
    """Input and output in one region, the output behind the input."""
    model = f"rows_{datatype.lower()}"
    about = http.get_model_metadata(model)
    source, target = about["inputs"][0]["name"], about["outputs"][0]["name"]
    data = sample(datatype, 3)
    written = serialize_byte_tensor(data) if datatype == "BYTES" else data
    size = written.item().__len__() if datatype == "BYTES" else data.nbytes
    name = f"check_{datatype}"
    handle = shm.create_shared_memory_region(name, f"/batchport_check_{os.getpid()}_{datatype}", 2 * size)
    try:
        shm.set_shared_memory_region(handle, [written])
        client.register_system_shared_memory(name, f"/batchport_check_{os.getpid()}_{datatype}", 2 * size)
        known = client.get_system_shared_memory_status(name)
        assert name in str(known), known
        tensor = module.InferInput(source, list(data.shape), datatype)
        tensor.set_shared_memory(name, size)
        output = module.InferRequestedOutput(target)
        output.set_shared_memory(name, size, size)
        result = client.infer(model, [tensor], outputs=[output])
        told = result.get_output(target)
        shape = told["shape"] if isinstance(told, dict) else list(told.shape)
        equal(shape, [3, 4], "shape")
        dtype = np.object_ if datatype == "BYTES" else triton_to_np_dtype(datatype)
        actual = shm.get_contents_as_numpy(handle, dtype, [3, 4], size)
        assert np.array_equal(actual, data), f"{target} is {actual!r}, not {data!r}"
        client.unregister_system_shared_memory(name)
        assert name not in str(client.get_system_shared_memory_status()), "it is still registered"
    finally:
        shm.destroy_shared_memory_region(handle)


def shared_failures(client):
    refused(lambda: client.register_system_shared_memory("none", "/batchport_no_such_memory", 16), "ENOENT")
    handle = shm.create_shared_memory_region("twice", f"/batchport_check_{os.getpid()}_twice", 16)
    try:
        client.register_system_shared_memory("twice", f"/batchport_check_{os.getpid()}_twice", 16)
        again = lambda: client.register_system_shared_memory("twice", f"/batchport_check_{os.getpid()}_twice", 16)
        refused(again, "already in manager")
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        equal(len(str(client.get_cuda_shared_memory_status()).strip("[]{}")), 0, "regions of GPUs")
    finally:
        shm.destroy_shared_memory_region(handle)


DATATYPES = "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FP16 FP32 FP64 BYTES".split()
for flavour, client, module in (("HTTP", http, httpclient), ("gRPC", grpc, grpcclient)):
    check(f"{flavour}: health", lambda: health(client))
    check(f"{flavour}: metadata and configuration", lambda: metadata(client))
    check(f"{flavour}: outputs, id, priority, timeout", lambda: options(client, module))
    check(f"{flavour}: failures", lambda: failures(client, module))
    check(f"{flavour}: classification", lambda: classification(client, module))
    check(f"{flavour}: statistics", lambda: statistics(client))
    check(f"{flavour}: load, unload, index", lambda: control(client))
    check(f"{flavour}: log settings", lambda: logging(client))
    for datatype in DATATYPES:
        check(f"{flavour}, shared memory: {datatype}", lambda: shared(client, module, datatype))
    check(f"{flavour}: refusals of shared memory", lambda: shared_failures(client))
for datatype in DATATYPES:
    check(f"HTTP, binary: {datatype}", lambda: identity_http(datatype, True))
    if datatype not in ("FP16", "BF16"):
        check(f"HTTP, JSON: {datatype}", lambda: identity_http(datatype, False))
    check(f"gRPC: {datatype}", lambda: identity_grpc(datatype))
for algorithm in ("gzip", "deflate"):
    check(f"HTTP: {algorithm}", lambda: compressed(algorithm))
check("HTTP: several at once", concurrent_http)
check("gRPC: several at once", callbacks_grpc)
check("gRPC: a stream", stream)
check("HTTP: asyncio", lambda: asyncio.run(asynchronous(httpaio, HTTP_URL)))
check("gRPC: asyncio", lambda: asyncio.run(asynchronous(grpcaio, GRPC_URL)))
http.close()
grpc.close()
