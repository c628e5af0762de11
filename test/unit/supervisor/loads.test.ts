/** Loads: one at a time, what becomes of those that fail, and when they are tried again. Devices are made up; files, lock and queues are real. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { DEFAULT_MODEL_CONFIG } from '../../../src/config/model-config.ts';
import type { Batching, LoadOrder } from '../../../src/protocol/control.ts';
import type { Device } from '../../../src/runtime/device-name.ts';
import { BatchingCache } from '../../../src/supervisor/batching-cache.ts';
import { CostCache } from '../../../src/supervisor/cost-cache.ts';
import type { DeviceChild, LoadOutcome, ServeOutcome } from '../../../src/supervisor/device-child.ts';
import { GpuWatch } from '../../../src/supervisor/gpu-watch.ts';
import { Loads } from '../../../src/supervisor/loads.ts';
import { MemoryCache } from '../../../src/supervisor/memory-cache.ts';
import { MemoryLedger } from '../../../src/supervisor/memory-ledger.ts';
import { ServedVersion } from '../../../src/supervisor/served-version.ts';
import { WeightLock } from '../../../src/supervisor/weight-lock.ts';
import { temporaryDirectory } from '../../support/repository.ts';

/** Longer than the slow schedule ever waits. */
const LATER_MS = 700_000;

const LOADED: LoadOutcome = {
  kind: 'loaded',
  signature: {
    inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 1], symbols: ['N', ''] }],
    outputs: [{ name: 'y', datatype: 'FP32', shape: [-1, 1], symbols: ['N', ''] }],
    skippedOutputs: [],
    metadata: { producer: '', graphName: '', description: '', version: '', custom: {} },
  },
  batching: { maxBatchSize: 4, reason: 'because' },
  loadMs: 1,
  canary: { found: true, detail: 'found' },
  memory: { weightsBytes: 7, outsideBytes: 0, loadPeakBytes: undefined, fixedShape: true, keys: [] },
};
const REFUSED: LoadOutcome = { kind: 'failed', message: 'it is no model' };
const DIED: LoadOutcome = { kind: 'died', outside: false };
const KILLED: LoadOutcome = { kind: 'died', outside: true };

const CPU: Device = { kind: 'cpu', index: 0, text: 'cpu' };

/** A device that does with each load what the test says next; LOADED when it has no say. */
class FakeDevice {
  readonly name: string;
  available = true;
  readonly next: LoadOutcome[] = [];
  serveOutcome: ServeOutcome = { kind: 'serving' };
  /** Keys of the versions whose loads began, and the largest batches that were known before. */
  readonly loads: string[] = [];
  readonly known: (number | undefined)[] = [];
  running = 0;
  mostRunning = 0;
  readonly moves: string[] = [];
  readonly device = CPU;
  readonly process = {
    pid: 1,
    loading: () => this.moves.push('loading'),
    warming: () => this.moves.push('warming'),
    ready: () => this.moves.push('ready'),
    lastExit: { how: 'crashed with signal SIGSEGV', outOfMemory: false },
  };
  readonly #versions: readonly ServedVersion[];

  constructor(name: string, versions: readonly ServedVersion[]) {
    this.name = name;
    this.#versions = versions;
  }

  get settled(): boolean {
    return this.#versions.every(({ placements }) =>
      placements.every(({ device, state }) => device !== this.name || state === 'serving' || state === 'failed'),
    );
  }

  async load(version: ServedVersion, known: Batching | undefined): Promise<LoadOutcome> {
    this.loads.push(version.key);
    this.known.push(known?.maxBatchSize);
    this.mostRunning = Math.max(this.mostRunning, ++this.running);
    await new Promise((resolve) => setImmediate(resolve));
    this.running--;
    const outcome = this.next.shift() ?? LOADED;
    // As the real one does when its process ends.
    if (outcome.kind === 'died') for (const { placements } of this.#versions) leave(placements, this.name);
    return outcome;
  }

  loadOrder(): LoadOrder {
    return { provider: 'cpu', deviceId: 0, intraOpThreads: 1 };
  }

  async serve(): Promise<ServeOutcome> {
    return this.serveOutcome;
  }

  readonly discarded: string[] = [];
  discard({ key }: ServedVersion): void {
    this.discarded.push(key);
  }
}

function leave(placements: ServedVersion['placements'], name: string): void {
  for (const placement of placements) {
    if (placement.device === name && placement.state !== 'failed') placement.state = 'waiting';
  }
}

function makeWorld(t: TestContext, names: readonly string[], devices: readonly string[] = ['cpu']) {
  const dir = temporaryDirectory(t, 'loads');
  const log = createLogger('test', 'fatal');
  const versions = names.map((name) => {
    const file = path.join(dir, `${name}.onnx`);
    fs.writeFileSync(file, 'a model');
    const model = { name, version: '1', path: file, sizeBytes: 7, config: DEFAULT_MODEL_CONFIG };
    return new ServedVersion(model, devices, 1, [0]);
  });
  const lock = new WeightLock(log, [dir]);
  const host = { availableBytes: 2 ** 30 };
  const ledger = new MemoryLedger({
    versions,
    devices: new Map(devices.map((name) => [name, CPU])),
    budgetBytes: undefined,
    cache: new MemoryCache(path.join(dir, 'cache'), log),
    gpus: new GpuWatch(log),
    log,
    host: () => ({ ...host, totalBytes: 2 ** 30, source: 'the test' }),
  });
  const batching = new BatchingCache(path.join(dir, 'cache'), log);
  const costs = new CostCache(path.join(dir, 'cache'), log);
  const loads = new Loads({ versions, batching, costs, lock, ledger, log, onChange: () => {} });
  t.after(() => {
    loads.stop();
    lock.close();
    for (const { segment } of versions) segment?.close();
  });
  const fakes = devices.map((name) => new FakeDevice(name, versions));
  const enqueue = (device = fakes[0]!): Promise<void> => {
    loads.enqueueAll(device as unknown as DeviceChild);
    return idle(loads);
  };
  return { loads, versions, devices: fakes, device: fakes[0]!, enqueue, host, batching };
}

async function idle(loads: Loads): Promise<void> {
  do await new Promise((resolve) => setTimeout(resolve, 1));
  while (loads.now.loading !== null || loads.now.waiting > 0);
}

test('everything is loaded, one after the other, and the device is ready then', async (t) => {
  const { loads, versions, devices } = makeWorld(t, ['a', 'b'], ['cpu', 'cpu#2']);
  for (const device of devices) loads.enqueueAll(device as unknown as DeviceChild);
  await idle(loads);
  for (const { record, placements } of versions) {
    assert.equal(record.state, 'READY');
    assert(placements.every(({ state, canary }) => state === 'serving' && canary?.found === true));
  }
  for (const device of devices) {
    assert.equal(device.mostRunning, 1);
    assert.deepEqual(device.moves, ['loading', 'warming', 'loading', 'loading', 'warming', 'ready']);
  }
});

test('a refused file fails with its reason and is tried again only when it has changed', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['a']);
  device.next.push(REFUSED);
  await enqueue();
  const [version] = versions;
  assert.deepEqual([version!.record.state, version!.record.reason], ['UNAVAILABLE', 'it is no model']);
  assert.equal(version!.failed, true);
  loads.retryDue(performance.now() + LATER_MS);
  await idle(loads);
  assert.equal(device.loads.length, 1);
  fs.writeFileSync(version!.file.path, 'another model');
  loads.retryDue(performance.now());
  await idle(loads);
  assert.equal(device.loads.length, 1, 'not before its time');
  loads.retryDue(performance.now() + 3 * LATER_MS);
  await idle(loads);
  assert.equal(device.loads.length, 2);
  assert.equal(version!.record.state, 'READY');
  assert.equal(version!.placements[0]!.probation, false);
});

test('a load that kills its process three times is put aside; killed by others it is not', async (t) => {
  const { versions, device, enqueue } = makeWorld(t, ['a']);
  device.next.push(DIED, KILLED, KILLED, KILLED, DIED);
  for (let n = 0; n < 5; n++) await enqueue();
  assert.equal(versions[0]!.failed, false);
  device.next.push(DIED);
  await enqueue();
  assert.equal(versions[0]!.failed, true);
  assert.match(
    versions[0]!.record.reason,
    /died 3 times in a row while loading it, at last: crashed with signal SIGSEGV/,
  );
  await enqueue();
  assert.equal(device.loads.length, 6);
});

test('one that kills is tried again at its time where nothing else on the device would suffer', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['a']);
  device.next.push(DIED, DIED, DIED, DIED);
  for (let n = 0; n < 3; n++) await enqueue();
  loads.retryDue(performance.now() + LATER_MS);
  await idle(loads);
  assert.equal(device.loads.length, 4);
  assert.equal(versions[0]!.failed, true, 'one more death is enough');
  loads.retryDue(performance.now() + 2 * LATER_MS);
  await idle(loads);
  assert.equal(versions[0]!.record.state, 'READY');
});

test('one that kills is left alone beside a model that is served, until its file changes or on command', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['good', 'bad']);
  for (let n = 0; n < 3; n++) {
    device.next.push(LOADED, DIED);
    await enqueue();
  }
  await enqueue(); // the good one, once more
  const [good, bad] = versions;
  assert.deepEqual([good!.record.state, bad!.failed], ['READY', true]);
  const before = device.loads.length;
  for (let n = 1; n < 5; n++) loads.retryDue(performance.now() + n * LATER_MS);
  await idle(loads);
  assert.equal(device.loads.length, before);
  loads.retryAll();
  await idle(loads);
  assert.equal(device.loads.length, before + 1);
  assert.equal(bad!.record.state, 'READY');
});

test('instances that cannot make their canary run fail the model for now', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['a']);
  device.serveOutcome = { kind: 'failed', message: 'its canary run failed: no memory' };
  await enqueue();
  assert.match(versions[0]!.record.reason, /canary run failed/);
  assert.equal(device.moves.at(-1), 'ready');
  device.serveOutcome = { kind: 'serving' };
  loads.retryDue(performance.now() + LATER_MS);
  await idle(loads);
  assert.equal(versions[0]!.record.state, 'READY');
});

test('a model that took a canary before and takes none after a death of the device is not said to be ready', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['a']);
  await enqueue();
  leave(versions[0]!.placements, 'cpu');
  versions[0]!.move('lost', 'its device process ended');
  device.next.push({ ...LOADED, canary: { found: false, detail: 'The model took none of 2 made-up inputs.' } });
  await enqueue();
  assert.equal(versions[0]!.record.state, 'UNAVAILABLE');
  assert.match(versions[0]!.record.reason, /has run on cpu before, and does not any more: The model took none/);
  assert.deepEqual(device.discarded, ['a/1']);
  loads.retryDue(performance.now() + LATER_MS);
  await idle(loads);
  assert.equal(versions[0]!.record.state, 'READY');
});

test('a batch size that was found for want of memory is not kept for the next start, another one is', async (t) => {
  const { loads, versions, devices, batching } = makeWorld(t, ['a', 'b']);
  const device = devices[0]!;
  // Facts are those of a file's bytes.
  fs.writeFileSync(versions[1]!.file.path, 'another model');
  versions[1]!.file.look();
  device.next.push({ ...LOADED, batching: { maxBatchSize: 0, reason: 'no memory', provisional: true } });
  loads.enqueueAll(device as unknown as DeviceChild);
  await idle(loads);
  assert.deepEqual(
    versions.map(({ fingerprint }) => batching.get(fingerprint!)),
    [undefined, LOADED.batching],
  );
});

test('while a failed model is tried again it still counts as failed', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['a']);
  device.next.push(REFUSED);
  await enqueue();
  device.available = false;
  loads.retryAll();
  assert.deepEqual([versions[0]!.placements[0]!.state, versions[0]!.failed], ['waiting', true]);
  device.available = true;
  await enqueue();
  assert.deepEqual([versions[0]!.record.state, versions[0]!.failed], ['READY', false]);
});

test('what one device refuses another may serve', async (t) => {
  const { loads, versions, devices } = makeWorld(t, ['a'], ['cpu', 'cpu#2']);
  devices[0]!.next.push(REFUSED);
  for (const device of devices) loads.enqueueAll(device as unknown as DeviceChild);
  await idle(loads);
  assert.equal(versions[0]!.record.state, 'READY');
  assert.deepEqual(
    versions[0]!.placements.map(({ state }) => state),
    ['failed', 'serving'],
  );
});

// Story: what a second device had loaded of a file that had changed meanwhile stayed in its memory, and nothing served it.
test('what is loaded and cannot be served is let go', async (t) => {
  const { loads, versions, devices } = makeWorld(t, ['a'], ['cpu', 'cpu#2', 'cpu#3']);
  const [x] = LOADED.signature.inputs;
  devices[1]!.next.push({ ...LOADED, signature: { ...LOADED.signature, inputs: [{ ...x!, name: 'z' }] } });
  devices[2]!.next.push({ ...LOADED, batching: { maxBatchSize: 0, reason: 'rows depend on one another' } });
  for (const device of devices) loads.enqueueAll(device as unknown as DeviceChild);
  await idle(loads);
  assert.deepEqual(
    versions[0]!.placements.map(({ state }) => state),
    ['serving', 'failed', 'failed'],
  );
  assert.match(versions[0]!.placements[2]!.reason, /other inputs, outputs or batches now/);
  assert.deepEqual(
    devices.map(({ discarded }) => discarded),
    [[], ['a/1'], ['a/1']],
  );
});

test('a file that is gone is told as that', async (t) => {
  const { versions, device, enqueue } = makeWorld(t, ['a']);
  fs.rmSync(versions[0]!.file.path);
  await enqueue();
  assert.deepEqual(device.loads, []);
  assert.match(versions[0]!.record.reason, /^its file does not exist \(.*a\.onnx\)$/);
});

test('an idle model that cannot be loaded again is not said to be ready', async (t) => {
  const { loads, versions, device, enqueue } = makeWorld(t, ['a']);
  await enqueue();
  versions[0]!.placements[0]!.state = 'waiting';
  device.next.push(REFUSED);
  loads.enqueueAll(device as unknown as DeviceChild);
  await idle(loads);
  assert.deepEqual([versions[0]!.record.state, versions[0]!.record.reason], ['UNAVAILABLE', 'it is no model']);
});

test('a version lost while another device loads it is ready once that has done so', async (t) => {
  const { loads, versions, device } = makeWorld(t, ['a']);
  loads.enqueueAll(device as unknown as DeviceChild);
  versions[0]!.move('lost', 'the other device died');
  await idle(loads);
  assert.equal(versions[0]!.record.state, 'READY');
});

// Story: a load beyond the memory there is ended in the kernel's out-of-memory killer, and so did every try after it.
test('a load for which there is no memory is not begun, holds no lock, and is tried again when its time has come', async (t) => {
  const { loads, versions, device, enqueue, host } = makeWorld(t, ['a', 'b']);
  host.availableBytes = 32 * 2 ** 20 + 3;
  await enqueue();
  assert.deepEqual(device.loads, []);
  assert.match(
    versions[0]!.record.reason,
    /^there is not enough memory: its load takes 7 bytes of the host's memory \(by the size of its files\), and the host has 3 bytes left: 32 MiB \(the test\) - 32 MiB in reserve$/,
  );
  assert.equal(loads.now.weight_lock.state, 'free');
  host.availableBytes = 2 ** 30;
  loads.retryDue(performance.now() + LATER_MS);
  await idle(loads);
  assert.deepEqual(
    versions.map(({ record }) => record.state),
    ['READY', 'READY'],
  );
});

// Story: the kernel ended the process for want of memory, and it was made to load the same model twice more before that was given up.
test('a load that the kernel ended for want of memory is not begun again while there is no more of it', async (t) => {
  const { loads, versions, device, enqueue, host } = makeWorld(t, ['a']);
  device.process.lastExit = { how: 'killed by the kernel for want of memory (signal SIGKILL)', outOfMemory: true };
  device.next.push(DIED);
  await enqueue();
  await enqueue();
  assert.deepEqual(device.loads, ['a/1']);
  assert.match(
    versions[0]!.record.reason,
    /its load was ended by the kernel for want of memory when the host had .* left/,
  );
  host.availableBytes *= 2;
  loads.retryDue(performance.now() + LATER_MS);
  await idle(loads);
  assert.deepEqual(device.loads, ['a/1', 'a/1']);
  assert.equal(versions[0]!.record.state, 'READY');
});

test('what trials have found out is known again of the same files, wherever they lie and whenever they were written, and not of others', async (t) => {
  const { versions, device, enqueue } = makeWorld(t, ['a', 'copied', 'other']);
  const [first] = versions;
  fs.utimesSync(first!.file.path, 1, 1);
  // As long as the others, and written at the same time.
  fs.writeFileSync(versions[2]!.file.path, 'a modem');
  fs.utimesSync(versions[2]!.file.path, 1, 1);
  await enqueue();
  assert.deepEqual(device.loads, ['a/1', 'copied/1', 'other/1']);
  assert.deepEqual(device.known, [undefined, 4, undefined]);
});

test('a file that is replaced in the middle of its load does not get what was found out about the one before', async (t) => {
  const { versions, device, enqueue } = makeWorld(t, ['a', 'b']);
  const [a, b] = versions;
  fs.writeFileSync(b!.file.path, 'another');
  const load = device.load.bind(device);
  device.load = async (version, known) => {
    if (version === a) fs.writeFileSync(a!.file.path, 'another');
    return load(version, known);
  };
  await enqueue();
  assert.deepEqual(device.known, [undefined, undefined]);
  assert.equal(a!.batching?.maxBatchSize, 4);
});
