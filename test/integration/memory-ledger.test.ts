/**
 * A model that does not fit took the whole device with it: its load failed in the middle, or the kernel ended the process, and the models that had been served were
 * gone. Here it is refused before it is begun, says why wherever it is asked, and the others never notice.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { assertRefused, binaryRequest, get, infer, json, send } from '../support/exchange.ts';
import { modelsOf } from '../support/idle.ts';
import { declare, encodeModel, externalConstant, node, spec } from '../support/onnx.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, type TestServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

const MIB = 2 ** 20;
/** Holds the weights of `mlp_big` (32 MiB) twice and not three times. */
const BUDGET_MIB = 80;
const HUGE_BYTES = 2 ** 40;

interface MemoryStatus {
  readonly host: { readonly total_bytes: number; readonly available_bytes: number; readonly reserve_bytes: number };
  readonly devices: readonly {
    readonly device: string;
    readonly total_bytes: number;
    readonly free_bytes: number;
    readonly models: readonly {
      readonly model: string;
      readonly weights_bytes: number;
      readonly weights_from: string;
      readonly share_bytes: number | null;
      readonly peak_bytes: number | null;
    }[];
  }[];
}

const cleanUp = { after };
const cache = temporaryDirectory(cleanUp, 'cache');
const bigs = ['big_a', 'big_b', 'big_c'];
const repository = makeRepository(
  cleanUp,
  Object.fromEntries(bigs.map((name) => [name, { fixture: 'mlp_big', config: { max_batch_size: 8 } }])),
);
/** Its weights lie in a sparse file that takes no space on the disk, and would take 1 TiB of memory. */
function writeHuge(): void {
  const side = repository.writeFile(['huge', '1', 'weights.bin'], '');
  fs.truncateSync(side, HUGE_BYTES);
  const weights = { location: 'weights.bin', offset: 0, length: HUGE_BYTES };
  const model = encodeModel({
    nodes: [node('Gather', ['table', 'x'], ['y'])],
    constants: [externalConstant('table', 'FP32', [HUGE_BYTES / 4], weights)],
    inputs: [spec('x', 'INT64', ['N', 1])].map(declare),
    outputs: [spec('y', 'FP32', ['N', 1])].map(declare),
  });
  repository.writeFile(['huge', '1', 'model.onnx'], model);
}
writeHuge();

function launch(): TestServer {
  const args = ['--memory-budget-bytes', `${BUDGET_MIB}MiB`];
  return launchServer(cleanUp, { repository: repository.dir, args, env: { BATCHPORT_CACHE_DIR: cache } });
}

let server = launch();
before(() => server.ready());

const input = binaryRequest(new Map([['x', tensor('FP32', [1, 1024], new Float32Array(1024).fill(0.5))]]));

async function accounts(): Promise<MemoryStatus> {
  return (await server.status()).memory as MemoryStatus;
}

function reasonOf(name: string): Promise<string> {
  return server.status().then((status) => modelsOf(status).find((model) => model.name === name)!.reason);
}

test('models that fit together are served, and one that does not is refused with the sums, wherever it is asked', async () => {
  for (const name of ['big_a', 'big_b']) assert.equal((await infer(server.url, name, input)).status, 200);
  const sums =
    /^there is not enough memory: its weights take 32 MiB \(by the size of its files\), and cpu has 0 bytes left: 80 MiB \(--memory-budget-bytes\) - 40 MiB for big_[ab]\/1 - 40 MiB for big_[ab]\/1$/;
  assert.match(await reasonOf('big_c'), sums);
  const index = JSON.parse(
    (await send(server.url, '/v2/repository/index', { headers: [], body: Buffer.alloc(0) })).body.toString(),
  );
  const entry = (index as { name: string; state: string; reason: string }[]).find(({ name }) => name === 'big_c');
  assert.equal(entry?.state, 'UNAVAILABLE');
  assert.match(entry.reason, sums);
  assertRefused(await infer(server.url, 'big_c', input), 'NOT_READY', /there is not enough memory/);
  assert.equal((await get(server.url, '/v2/models/big_c/ready')).status, 503);
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200, 'without --strict-readiness');
});

test('a model that no memory of the host would hold is refused by the size of its files, before they are read', async () => {
  assert.match(
    await reasonOf('huge'),
    /its load takes 1 TiB of the host's memory \(by the size of its files\), and the host has .* left: .* \(\/.+\) - .* in reserve$/,
  );
  const loaded = server.logs.filter(({ msg }) => msg === 'model loaded').map(({ model }) => model);
  assert.deepEqual(loaded.toSorted(), ['big_a/1', 'big_b/1'], 'nothing of the others was begun');
});

test('the accounts add up in the status and in the metrics', async () => {
  const { host, devices } = await accounts();
  assert(host.available_bytes <= host.total_bytes && host.reserve_bytes > 0);
  const [cpu] = devices;
  assert.deepEqual([devices.length, cpu!.device, cpu!.total_bytes], [1, 'cpu', BUDGET_MIB * MIB]);
  const shares = cpu!.models.map(({ share_bytes }) => share_bytes ?? 0);
  assert(cpu!.free_bytes + shares.reduce((sum, bytes) => sum + bytes, 0) <= BUDGET_MIB * MIB);
  for (const name of ['big_a', 'big_b']) {
    const model = cpu!.models.find((one) => one.model === name)!;
    assert.equal(model.weights_from, 'measured');
    assert(Math.abs(model.weights_bytes - 32 * MIB) < MIB, `${model.weights_bytes}`);
    assert(model.peak_bytes! > 0 && model.weights_bytes + model.peak_bytes! <= model.share_bytes!);
    const held = await server.metric('batchport_model_memory_held_bytes', { model: name });
    assert(held >= model.weights_bytes && held <= model.share_bytes!, `${held} held`);
    assert.equal(await server.metric('batchport_model_memory_share_bytes', { model: name }), model.share_bytes);
  }
  assert.equal(await server.metric('batchport_device_memory_total_bytes', { device: 'cpu' }), BUDGET_MIB * MIB);
  assert.equal(await server.metric('batchport_device_memory_free_bytes', { device: 'cpu' }), cpu!.free_bytes);
});

test('a device process that dies gives its shares back, and its models are served again beside each other', async () => {
  const [before] = await server.pids('device');
  process.kill(before!, 'SIGKILL');
  for (const name of ['big_a', 'big_b']) assert.equal((await infer(server.url, name, input)).status, 200);
  const { devices } = await accounts();
  const served = devices[0]!.models.filter(({ share_bytes }) => share_bytes !== null).map(({ model }) => model);
  assert.deepEqual(served.toSorted(), ['big_a', 'big_b']);
});

test('after a restart the same files are known by what they took, also under another name', async () => {
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  server = launch();
  await server.ready();
  assert.match(
    await reasonOf('big_c'),
    /its weights take 32 MiB \(measured when they were last loaded\) and a run of one row/,
  );
  for (const name of ['big_a', 'big_b']) assert.equal(json(await infer(server.url, name, input)).model_name, name);
});
