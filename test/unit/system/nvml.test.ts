/** NVIDIA's management library, played by a small C library of the same functions that answers as its environment says. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { type GpuMemory, Nvml, type Unknown } from '../../../src/system/nvml.ts';
import { buildFakeNvml } from '../../support/fake-nvml.ts';
import { temporaryDirectory } from '../../support/repository.ts';

const GIB = 2 ** 30;
const folder = temporaryDirectory({ after }, 'nvml');
const library = buildFakeNvml(folder);
const skip = typeof library === 'string' ? false : library.skip;
const state = path.join(folder, 'state');

/** What the fake says from now on: lines `gpu UUID total used`, `process GPU pid used`, `fail FUNCTION code`. */
function play(...lines: string[]): void {
  fs.writeFileSync(state, `${lines.join('\n')}\n`);
}

async function open(): Promise<Nvml> {
  process.env.FAKE_NVML_STATE = state;
  const nvml = await Nvml.open(library as string);
  assert(nvml instanceof Nvml, JSON.stringify(nvml));
  return nvml;
}

function known(memory: GpuMemory | Unknown): GpuMemory {
  assert(!('unknown' in memory), JSON.stringify(memory));
  return memory;
}

test('a machine without the library gets the reason as a value', async () => {
  const nvml = await Nvml.open('libnvidia-ml-that-is-not-there.so.1');
  assert(!(nvml instanceof Nvml));
  assert.match(nvml.unknown, /libnvidia-ml-that-is-not-there\.so\.1/);
});

test('memory and processes of a GPU are told by its number and by its UUID', { skip }, async () => {
  play(
    `gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`,
    `gpu GPU-bbbb-2 ${80 * GIB} ${3 * GIB}`,
    `process 1 4711 ${2 * GIB}`,
    'process 1 4712 18446744073709551615',
  );
  const nvml = await open();
  assert.deepEqual(await nvml.memory({ index: 0 }), {
    totalBytes: 8 * GIB,
    freeBytes: 7 * GIB,
    usedBytes: GIB,
    processes: new Map(),
  });
  const second = known(await nvml.memory({ uuid: 'GPU-bbbb' }));
  assert.equal(second.totalBytes, 80 * GIB);
  assert.deepEqual(second.processes, new Map([[4711, 2 * GIB], [4712, 0]])); // biome-ignore format: one map
  assert.deepEqual(await nvml.memory({ index: 1 }), second);
});

test('a GPU that is not there, and a call that fails, are told in words', { skip }, async () => {
  play(`gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`);
  const nvml = await open();
  assert.match(JSON.stringify(await nvml.memory({ index: 3 })), /nvmlDeviceGetHandleByIndex_v2: .*\(2\)/);
  assert.match(JSON.stringify(await nvml.memory({ uuid: 'GPU-zz' })), /there is no GPU GPU-zz/);
  play(`gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`, 'fail nvmlDeviceGetMemoryInfo 15');
  assert.match(JSON.stringify(await nvml.memory({ index: 0 })), /nvmlDeviceGetMemoryInfo: .*\(15\)/);
  play(`gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`, 'fail nvmlDeviceGetComputeRunningProcesses_v3 3');
  assert.equal(known(await nvml.memory({ index: 0 })).processes, undefined);
});

test('a driver that cannot be initialised is told in words', { skip }, async () => {
  play('fail nvmlInit_v2 9');
  process.env.FAKE_NVML_STATE = state;
  assert.match(JSON.stringify(await Nvml.open(library as string)), /nvmlInit_v2: .*\(9\)/);
});

test('a call that the driver keeps does not hold up the event loop', { skip }, async () => {
  play(`gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`);
  const nvml = await open();
  const lock = path.join(folder, 'held');
  fs.writeFileSync(lock, '');
  play(`gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`, `hold nvmlDeviceGetMemoryInfo ${lock}`);
  let answered = false;
  const answer = nvml.memory({ index: 0 }).then((memory) => {
    answered = true;
    return memory;
  });
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(answered, false);
  fs.rmSync(lock);
  known(await answer);
});

test('the library is found where the dynamic linker looks', { skip }, () => {
  play(`gpu GPU-aaaa-1 ${8 * GIB} ${GIB}`);
  const module = new URL('../../../src/system/nvml.js', import.meta.url).href;
  const program = `
    const { Nvml } = await import(${JSON.stringify(module)});
    const nvml = await Nvml.open();
    console.log((await nvml.memory({ index: 0 })).totalBytes);`;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    encoding: 'utf8',
    env: { ...process.env, LD_LIBRARY_PATH: folder, FAKE_NVML_STATE: state },
  });
  assert.equal(stdout.trim(), String(8 * GIB), stderr);
});
