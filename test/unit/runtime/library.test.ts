import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CStrings } from '../../../src/runtime/c-strings.ts';
import { Cells } from '../../../src/runtime/cells.ts';
import { FUNCTIONS, type FunctionShape, LIBRARY_VERSION } from '../../../src/runtime/functions.ts';
import { canLoadLibrary, ortLibrary, readPointer, readText } from '../../../src/runtime/library.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import { availableProviders } from '../../../src/runtime/provider.ts';
import { modelFolder, modelPath } from './models.ts';

test('the library that the package carries has the version the table was taken for', () => {
  assert.equal(ortLibrary().version, LIBRARY_VERSION);
});

test('each position of the function table is used once', () => {
  const positions = Object.values<FunctionShape>(FUNCTIONS).map(({ at }) => at);
  assert.equal(new Set(positions).size, positions.length);
});

test('positions 1, 2, 78, 93 and 130: a refused call gives a status with its code and message', () => {
  const { api, check, out } = ortLibrary();
  assert.notEqual(
    out((cell) => api.GetAllocatorWithDefaultOptions(cell)),
    0,
  );
  const options = out((cell) => api.CreateSessionOptions(cell));
  try {
    assert.throws(
      () => check(api.AddSessionConfigEntry(options, '', 'value')),
      (error) => error instanceof OrtError && error.codeName === 'INVALID_ARGUMENT' && /key/i.test(error.message),
    );
  } finally {
    api.ReleaseSessionOptions(options);
  }
});

test('position 125: the CPU provider is among the available ones', () => {
  const providers = availableProviders();
  assert(providers.includes('CPUExecutionProvider'), providers.join());
});

test('positions 49, 50, 51, 61, 62, 64, 65, 318: a tensor over memory describes itself', () => {
  const { api, check, out } = ortLibrary();
  const info = out((cell) => api.CreateCpuMemoryInfo(1, 0, cell));
  const memory = new Cells(3);
  const dims = new Cells(2);
  dims.set(0, 3);
  dims.set(1, 2);
  const value = out((cell) => api.CreateTensorWithDataAsOrtValue(info, memory.address, 24, dims.address, 2, 1, cell));
  try {
    assert.equal(
      out((cell) => api.IsTensor(value, cell)),
      1,
    );
    assert.equal(
      out((cell) => api.GetTensorMutableData(value, cell)),
      memory.address,
    );
    assert.equal(
      out((cell) => api.GetTensorSizeInBytes(value, cell)),
      24,
    );
    const shape = out((cell) => api.GetTensorTypeAndShape(value, cell));
    try {
      assert.equal(
        out((cell) => api.GetTensorElementType(shape, cell)),
        1,
      );
      assert.equal(
        out((cell) => api.GetTensorShapeElementCount(shape, cell)),
        6,
      );
      assert.equal(
        out((cell) => api.GetDimensionsCount(shape, cell)),
        2,
      );
      const read = new Cells(2);
      check(api.GetDimensions(shape, read.address, 2));
      assert.deepEqual([read.get(0), read.get(1)], [3, 2]);
    } finally {
      api.ReleaseTensorTypeAndShapeInfo(shape);
    }
  } finally {
    api.ReleaseValue(value);
    api.ReleaseMemoryInfo(info);
  }
});

test('cells keep signed integers of 53 bits and addresses', () => {
  const cells = new Cells(4);
  for (const value of [0, 1, -1, 2 ** 32 - 1, 2 ** 32, -(2 ** 32), 2 ** 47 - 1, 2 ** 53 - 1, -(2 ** 53 - 1)]) {
    cells.set(2, value);
    assert.equal(cells.get(2), value);
  }
  assert.equal(cells.get(1), 0);
  assert.equal(cells.get(3), 0);
  cells.set(0, -7);
  assert.equal(cells.int(0), -7);
});

test('arrays of C strings are read back as they were given, and a zero byte is refused', () => {
  const strings = new CStrings(['x', '', 'größe', '__proto__']);
  assert.equal(strings.count, 4);
  const read = [0, 1, 2, 3].map((index) => readText(readPointer(strings.address, index)));
  assert.deepEqual(read, ['x', '', 'größe', '__proto__']);
  assert.equal(strings.pointer(2), readPointer(strings.address, 2));
  assert.throws(() => new CStrings(['a\0b']), RangeError);
});

test('a library that is not there cannot be loaded', () => {
  assert.equal(canLoadLibrary('libc.so.6'), true);
  assert.equal(canLoadLibrary('libnowhere-to-be-found.so.9'), false);
});

test('nothing is reported to anyone: no database, no log, unless the user asks for it', () => {
  const from = (file: string) => JSON.stringify(import.meta.resolve(`../../../src/runtime/${file}`));
  const program = `
    import { Session } from ${from('session.js')};
    Session.load(process.argv[1], { provider: 'cpu', deviceId: 0, intraOpThreads: 1 }).release();
  `;
  const filesAfter = (environment: Record<string, string>): string[] => {
    const folder = mkdtempSync(path.join(modelFolder(), 'home-'));
    const { ORT_DISABLE_TELEMETRY: _, CI: __, ...inherited } = process.env;
    const { status, stderr } = spawnSync(
      process.execPath,
      ['--input-type=module', '-e', program, modelPath('simple')],
      {
        encoding: 'utf8',
        env: { ...inherited, HOME: folder, XDG_CACHE_HOME: folder, TMPDIR: folder, ...environment },
      },
    );
    assert.equal(status, 0, stderr);
    return readdirSync(folder);
  };
  assert.deepEqual(filesAfter({}), []);
});

test('a folder without the library is an error that says how to get it', () => {
  const program = `import { ortLibrary } from ${JSON.stringify(import.meta.resolve('../../../src/runtime/library.js'))};
    try { ortLibrary(); } catch (error) { console.log(error.code, error.message); }`;
  const folder = fileURLToPath(new URL('.', import.meta.url));
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    encoding: 'utf8',
    env: { ...process.env, BATCHPORT_ONNXRUNTIME_DIR: folder },
  });
  assert.match(stdout, /^NOT_SUPPORTED ONNX Runtime is missing: .*libonnxruntime\.so\.1.*onnxruntime-node 1\.30\.0/);
});
