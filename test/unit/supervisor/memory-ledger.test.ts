/** The memory accounts of devices, gathered from real files and a real cache folder; the GPUs' driver and the host are made up. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { DEFAULT_MODEL_CONFIG, type ModelConfig } from '../../../src/config/model-config.ts';
import type { LoadOrder, MemoryReport } from '../../../src/protocol/control.ts';
import { type Device, parseDeviceName } from '../../../src/runtime/device-name.ts';
import { GpuWatch } from '../../../src/supervisor/gpu-watch.ts';
import { MemoryCache } from '../../../src/supervisor/memory-cache.ts';
import { type LedgerDevice, type LoadTerms, MemoryLedger } from '../../../src/supervisor/memory-ledger.ts';
import { ServedVersion } from '../../../src/supervisor/served-version.ts';
import type { GpuMemory } from '../../../src/system/nvml.ts';
import { temporaryDirectory } from '../../support/repository.ts';

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const log = createLogger('test', 'fatal');
const PID = 4711;

interface WorldOptions {
  readonly dir?: string;
  readonly devices?: readonly string[];
  readonly budgetBytes?: number;
  /** Weights of each model, MiB: the size of its file. */
  readonly models?: Readonly<Record<string, number>>;
  readonly config?: Partial<ModelConfig>;
  readonly gpu?: GpuMemory;
  readonly order?: Partial<LoadOrder>;
}

function makeWorld(t: TestContext, options: WorldOptions = {}) {
  const { devices: names = ['cpu'], models = { a: 1, b: 1 }, gpu } = options;
  const dir = options.dir ?? temporaryDirectory(t, 'ledger');
  const config = { ...DEFAULT_MODEL_CONFIG, ...options.config };
  const versions = Object.entries(models).map(([name, mib]) => {
    const file = path.join(dir, `${name}.onnx`);
    if (!fs.existsSync(file)) {
      fs.writeFileSync(file, name);
      fs.truncateSync(file, mib * MIB);
    }
    return new ServedVersion({ name, version: '1', path: file, sizeBytes: mib * MIB, config }, names, 1, [0]);
  });
  const host = { totalBytes: 16 * GIB, availableBytes: 8 * GIB, source: 'the test' };
  const driver = { gpu };
  const parsed = new Map(names.map((name): [string, Device] => [name, parseDeviceName(name.replace(/#.*/, ''))]));
  const ledger = new MemoryLedger({
    versions,
    devices: parsed,
    budgetBytes: options.budgetBytes,
    cache: new MemoryCache(path.join(dir, 'cache'), log),
    gpus: new GpuWatch(log, async () => ({ memory: async () => driver.gpu ?? { unknown: 'no driver' } })),
    log,
    host: () => host,
  });
  const devices = names.map(
    (name, n): LedgerDevice => ({
      name,
      device: parsed.get(name)!,
      process: { pid: PID + n },
      loadOrder: () => ({ provider: parsed.get(name)!.kind, deviceId: 0, intraOpThreads: 1, ...options.order }),
    }),
  );
  const admit = (version: ServedVersion, device = devices[0]!) => ledger.admit(device, version);
  return { dir, ledger, versions, devices, host, driver, admit };
}

/** Terms of a model of a file of 1 MiB of which nothing is known. */
const NO_LIMIT = {
  fits: true,
  arenaMaxBytes: undefined,
  measured: undefined,
  filesBytes: MIB,
  outsideBytes: 0,
  canGrow: false,
  alone: true,
};

function withoutFingerprint(terms: LoadTerms) {
  assert(terms.fits);
  const { fingerprint, ...rest } = terms;
  assert.match(fingerprint ?? '', /^[0-9a-f]{64}$/);
  return rest;
}

const report = (changes: Partial<MemoryReport> = {}): MemoryReport => ({
  weightsBytes: 2 * MIB,
  outsideBytes: 0,
  loadPeakBytes: undefined,
  fixedShape: true,
  keys: [{ key: '4', elements: 4, points: [{ rows: 1, bytes: MIB }] }],
  ...changes,
});

test('without a budget a CPU sets no limit, and what runs may take is a part of what the host has left', async (t) => {
  const { ledger, versions, host, admit } = makeWorld(t);
  const [a] = versions;
  assert.deepEqual(withoutFingerprint(await admit(a!)), NO_LIMIT);
  assert.equal(ledger.roomBytes('cpu', a!), (8 * GIB - GIB / 2) / 2);
  host.availableBytes = 0;
  assert.equal(ledger.roomBytes('cpu', a!), 64 * MIB, 'not worth splitting batches for');
});

test('a budget is divided among the models of a device; each device has its own', async (t) => {
  const { ledger, versions, devices, admit } = makeWorld(t, { devices: ['cpu', 'cpu#2'], budgetBytes: 100 * MIB });
  for (const device of devices) {
    for (const version of versions) {
      const terms = await admit(version, device);
      assert(terms.fits && terms.arenaMaxBytes === 50 * MIB, JSON.stringify(terms));
      assert.equal(ledger.roomBytes(device.name, version), undefined, 'its arena has a limit');
    }
  }
  assert.deepEqual(
    ledger.status().map(({ totalBytes, freeBytes }) => [totalBytes, freeBytes]),
    [
      [100 * MIB, 0],
      [100 * MIB, 0],
    ],
  );
  ledger.released('cpu');
  assert.deepEqual(
    ledger.status().map(({ freeBytes }) => freeBytes),
    [100 * MIB, 0],
  );
});

test('what a load and the runs after it have measured is known at the next start', async (t) => {
  const first = makeWorld(t, { budgetBytes: 100 * MIB });
  await first.admit(first.versions[0]!);
  first.ledger.loaded('cpu', first.versions[0]!, report());
  const point = { rows: 2, bytes: 5 * MIB };
  first.ledger.measured('cpu', { type: 'measured', model: 'a/1', key: '4', elements: 4, point });
  first.ledger.keep();
  const second = makeWorld(t, { dir: first.dir, budgetBytes: 100 * MIB });
  const terms = await second.admit(second.versions[0]!);
  assert(terms.fits);
  assert.deepEqual(terms.measured, [{ key: '4', elements: 4, points: [{ rows: 1, bytes: MIB }, point] }]);
  const [a, b] = second.ledger.status()[0]!.models;
  assert.deepEqual([a!.weightsBytes, a!.weightsFrom], [2 * MIB, 'measured']);
  assert.deepEqual([b!.weightsBytes, b!.weightsFrom], [MIB, 'estimated'], 'it is another file');
  const others = makeWorld(t, { dir: first.dir, order: { graphOptimization: 'disable' } });
  const elsewhere = await others.admit(others.versions[0]!);
  assert(elsewhere.fits && elsewhere.measured === undefined, 'loaded with other options it may take something else');
});

test('a damaged measurement is as good as none', async (t) => {
  const first = makeWorld(t);
  await first.admit(first.versions[0]!);
  first.ledger.loaded('cpu', first.versions[0]!, report());
  const folder = path.join(first.dir, 'cache', 'memory');
  const [name] = fs.readdirSync(folder);
  for (const text of [
    '',
    '{}',
    'null',
    '{"weightsBytes":-1,"outsideBytes":0,"fixedShape":true,"keys":[]}',
    '{"weightsBytes":1,"fixedShape":true,"keys":[]}',
    '{"outsideBytes":0,"fixedShape":true,"keys":[{"key":"4","elements":4,"points":[]}]}',
    '{"outsideBytes":0,"fixedShape":true,"keys":[{"key":"4","elements":4,"points":[{"rows":2,"bytes":1},{"rows":1,"bytes":1}]}]}',
  ]) {
    fs.writeFileSync(path.join(folder, name!), text);
    const next = makeWorld(t, { dir: first.dir });
    const terms = await next.admit(next.versions[0]!);
    assert(terms.fits && terms.measured === undefined, text);
  }
});

// It had a quarter more than that, a few kilobytes, and no request of it was ever answered again: what fails is not measured.
test('a small model has room for runs larger than those that were measured', async (t) => {
  const { ledger, versions, admit } = makeWorld(t, { budgetBytes: 100 * MIB, models: { a: 1, b: 1 } });
  assert((await admit(versions[0]!)).fits);
  const keys = [{ key: '4', elements: 4, points: [{ rows: 1, bytes: 1000 }] }];
  ledger.loaded('cpu', versions[0]!, report({ weightsBytes: 1000, keys }));
  ledger.released('cpu');
  const next = await admit(versions[0]!);
  assert(next.fits && next.arenaMaxBytes !== undefined && next.arenaMaxBytes >= MIB, JSON.stringify(next));
});

test('a model whose runs turn out to need more than was measured is given that the next time', async (t) => {
  const { ledger, versions, admit } = makeWorld(t, { budgetBytes: 1000 * MIB, models: { a: 1 } });
  const keys = [{ key: '4', elements: 4, points: [{ rows: 1, bytes: 40 * MIB }] }];
  assert((await admit(versions[0]!)).fits);
  ledger.loaded('cpu', versions[0]!, report({ weightsBytes: MIB, keys }));
  ledger.released('cpu');
  const first = await admit(versions[0]!);
  assert(first.fits && first.canGrow && first.arenaMaxBytes === 51 * MIB, JSON.stringify(first));
  const point = { rows: 1, bytes: 75 * MIB };
  ledger.measured('cpu', { type: 'measured', model: versions[0]!.key, key: '4', elements: 4, point });
  ledger.released('cpu');
  const next = await admit(versions[0]!);
  assert(next.fits && next.arenaMaxBytes! >= 76 * MIB, JSON.stringify(next));
});

test('weights outside of the arena lower its limit, once they are known', async (t) => {
  const { ledger, versions, admit } = makeWorld(t, { budgetBytes: 100 * MIB, models: { a: 20 } });
  const first = await admit(versions[0]!);
  assert(first.fits && first.arenaMaxBytes === 100 * MIB && first.filesBytes === 20 * MIB);
  ledger.loaded('cpu', versions[0]!, report({ weightsBytes: 20 * MIB, outsideBytes: 15 * MIB, fixedShape: false }));
  ledger.released('cpu');
  const next = await admit(versions[0]!);
  assert(next.fits && next.arenaMaxBytes === 85 * MIB && next.outsideBytes === 15 * MIB);
  assert.equal(ledger.status()[0]!.models[0]!.shareBytes, 100 * MIB);
});

test('weights that were found too large on the way are known to be so', async (t) => {
  const { ledger, versions, admit } = makeWorld(t, { budgetBytes: 100 * MIB, models: { a: 1 } });
  assert((await admit(versions[0]!)).fits);
  ledger.notLoaded('cpu', versions[0]!, 200 * MIB);
  const terms = await admit(versions[0]!);
  assert(!terms.fits);
  assert.match(
    terms.reason,
    /^its weights take 200 MiB \(measured when they were last loaded\), and cpu has 100 MiB left/,
  );
});

test('a load that the kernel ended for want of memory is not tried again with as little', async (t) => {
  const { ledger, versions, host, admit } = makeWorld(t);
  const [a] = versions;
  await admit(a!);
  ledger.killed('cpu', a!);
  const terms = await admit(a!);
  assert(!terms.fits);
  assert.match(
    terms.reason,
    /ended by the kernel for want of memory when the host had 7\.5 GiB left, and now there are 7\.5 GiB/,
  );
  host.availableBytes = 12 * GIB;
  assert((await admit(a!)).fits);
});

test('a file that has been replaced is looked at again', async (t) => {
  const { versions, admit } = makeWorld(t, { budgetBytes: 10 * MIB, models: { a: 20 } });
  assert(!(await admit(versions[0]!)).fits);
  fs.truncateSync(versions[0]!.file.path, MIB);
  assert((await admit(versions[0]!)).fits);
});

test('a file that cannot be looked at is left to its load', async (t) => {
  const { versions, admit } = makeWorld(t);
  fs.rmSync(versions[0]!.file.path);
  assert((await admit(versions[0]!)).fits);
});

test('a GPU is divided by what its driver tells, less a reserve and what other processes have', async (t) => {
  const gpu = { totalBytes: 16 * GIB, usedBytes: 3 * GIB, freeBytes: 13 * GIB, processes: new Map([[PID, GIB], [99, 2 * GIB]]) }; // biome-ignore format: one line
  const { ledger, versions, driver, admit } = makeWorld(t, { devices: ['cuda:0'], gpu, models: { a: 1 } });
  const terms = await admit(versions[0]!);
  assert(terms.fits);
  assert.equal(terms.arenaMaxBytes, (16 - 1 - 2) * GIB);
  const [account] = ledger.status();
  assert.equal(account!.source, 'the GPU');
  assert.deepEqual([account!.othersBytes, account!.usedBytes, account!.processBytes], [2 * GIB, 3 * GIB, GIB]);
  ledger.notLoaded('cuda:0', versions[0]!, undefined);
  driver.gpu = { ...gpu, usedBytes: 16 * GIB, freeBytes: 0, processes: new Map([[99, 16 * GIB]]) };
  const refused = await admit(versions[0]!);
  assert(!refused.fits);
  assert.match(
    refused.reason,
    /cuda:0 has 0 bytes left: 16 GiB \(the GPU\) - 1 GiB in reserve - 16 GiB of other processes$/,
  );
});

test('two processes on one GPU have half of it each, and do not count each other as others', async (t) => {
  const gpu = { totalBytes: 16 * GIB, usedBytes: 4 * GIB, freeBytes: 12 * GIB, processes: new Map([[PID, 2 * GIB], [PID + 1, 2 * GIB]]) }; // biome-ignore format: one line
  const { devices, versions, admit } = makeWorld(t, { devices: ['cuda:0', 'cuda:0#2'], gpu, models: { a: 1 } });
  await admit(versions[0]!, devices[1]);
  for (const device of devices) {
    const terms = await admit(versions[0]!, device);
    assert(terms.fits && terms.arenaMaxBytes === 7.5 * GIB, JSON.stringify(terms));
  }
});

test('without a driver a GPU has no account, and its own budget counts where there is one', async (t) => {
  const open = makeWorld(t, { devices: ['cuda:0'] });
  assert.deepEqual(withoutFingerprint(await open.admit(open.versions[0]!)), NO_LIMIT);
  const config = { memoryBudgetBytes: 300 * MIB };
  const own = makeWorld(t, { devices: ['cuda:0'], config });
  const terms = await own.admit(own.versions[0]!);
  assert(terms.fits && terms.arenaMaxBytes === 300 * MIB);
});

test('WebGPU takes no limit: its budget decides on loads alone', async (t) => {
  const { versions, admit } = makeWorld(t, { devices: ['webgpu:0'], budgetBytes: 10 * MIB, models: { a: 4, b: 20 } });
  assert.deepEqual(withoutFingerprint(await admit(versions[0]!)), { ...NO_LIMIT, filesBytes: 4 * MIB });
  assert(!(await admit(versions[1]!)).fits);
});
