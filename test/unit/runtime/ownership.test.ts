/**
 * Every object that ONNX Runtime hands over is given back: the function table is wrapped by a ledger of what is owned, on the good paths and
 * on those that fail.
 */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { FUNCTIONS, type FunctionShape } from '../../../src/runtime/functions.ts';
import { libraryDirectory, ortLibrary, readPointer } from '../../../src/runtime/library.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import { appendProvider, availableProviders, providerSteps } from '../../../src/runtime/provider.ts';
import { Runner } from '../../../src/runtime/runner.ts';
import { type LoadOptions, Session } from '../../../src/runtime/session.ts';
import { withSessionOptions } from '../../../src/runtime/session-options.ts';
import { sampleInputs } from '../../support/fixture.ts';
import { fixture } from '../../support/models.ts';
import { Random } from '../../support/random.ts';
import { tensor } from '../../support/tensor.ts';
import { CPU, filePath, modelPath } from './models.ts';
import { runOnce } from './values.ts';

type Name = keyof typeof FUNCTIONS;

/** Functions that hand an object over: through which parameter, and which function gives it back. */
const HANDED_OVER: Partial<Record<Name, readonly [parameter: number, release: Name]>> = {
  GetAvailableProviders: [0, 'ReleaseAvailableProviders'],
  CreateArenaCfgV2: [3, 'ReleaseArenaCfg'],
  CreateMemoryInfo: [4, 'ReleaseMemoryInfo'],
  CreateCpuMemoryInfo: [2, 'ReleaseMemoryInfo'],
  CreateAllocator: [2, 'ReleaseAllocator'],
  AllocatorGetStats: [1, 'ReleaseKeyValuePairs'],
  CreateSessionOptions: [0, 'ReleaseSessionOptions'],
  CreateSession: [3, 'ReleaseSession'],
  SessionGetInputTypeInfo: [2, 'ReleaseTypeInfo'],
  SessionGetOutputTypeInfo: [2, 'ReleaseTypeInfo'],
  SessionGetInputName: [3, 'AllocatorFree'],
  SessionGetOutputName: [3, 'AllocatorFree'],
  SessionGetModelMetadata: [1, 'ReleaseModelMetadata'],
  ModelMetadataGetProducerName: [2, 'AllocatorFree'],
  ModelMetadataGetGraphName: [2, 'AllocatorFree'],
  ModelMetadataGetDescription: [2, 'AllocatorFree'],
  ModelMetadataLookupCustomMetadataMap: [3, 'AllocatorFree'],
  ModelMetadataGetCustomMetadataMapKeys: [2, 'AllocatorFree'],
  CreateRunOptions: [0, 'ReleaseRunOptions'],
  CreateTensorAsOrtValue: [4, 'ReleaseValue'],
  CreateTensorWithDataAsOrtValue: [6, 'ReleaseValue'],
  GetTensorTypeAndShape: [1, 'ReleaseTensorTypeAndShapeInfo'],
  CreateCUDAProviderOptions: [0, 'ReleaseCUDAProviderOptions'],
  CreateTensorRTProviderOptions: [0, 'ReleaseTensorRTProviderOptions'],
};

const KEPT_BY_THE_PROCESS: readonly Name[] = ['CreateEnv'];

/** What is owned and what was handed over in all, while `use` runs. */
function ledgerOf(use: () => void): { owned: string[]; handedOver: number } {
  const api = ortLibrary().api as unknown as Record<string, (...parameters: (number | string)[]) => unknown>;
  const originals = { ...api };
  const owned = new Map<string, number>();
  let handedOver = 0;
  const add = (release: Name, pointer: number, by: string): void => {
    if (pointer === 0) return;
    handedOver++;
    const key = `${by}: ${release} ${pointer}`;
    owned.set(key, (owned.get(key) ?? 0) + 1);
  };
  const remove = (release: string, pointer: number): void => {
    const key = [...owned.keys()].find((entry) => entry.endsWith(`: ${release} ${pointer}`));
    assert(key !== undefined, `${release}(${pointer}) gives back what is not owned`);
    const left = owned.get(key)! - 1;
    if (left === 0) owned.delete(key);
    else owned.set(key, left);
  };
  const releases = new Set<string>(['ReleaseStatus', ...Object.values(HANDED_OVER).map(([, release]) => release)]);
  for (const [name, shape] of Object.entries<FunctionShape>(FUNCTIONS)) {
    const original = originals[name]!;
    api[name] = (...parameters) => {
      const given = name === 'Run' ? pointers(parameters[7] as number, parameters[6] as number) : [];
      if (releases.has(name)) remove(name, parameters[name === 'AllocatorFree' ? 1 : 0] as number);
      const result = original(...parameters);
      if (shape.gives === 'status' && result !== 0) {
        add('ReleaseStatus', result as number, name);
        return result;
      }
      const rule = HANDED_OVER[name as Name];
      if (rule !== undefined) add(rule[1], readPointer(parameters[rule[0]] as number, 0), name);
      if (name === 'ModelMetadataGetCustomMetadataMapKeys') {
        const list = readPointer(parameters[2] as number, 0);
        const count = readPointer(parameters[3] as number, 0);
        for (const key of pointers(list, count)) add('AllocatorFree', key, name);
      }
      if (name === 'Run') {
        pointers(parameters[7] as number, parameters[6] as number).forEach((value, index) => {
          if (given[index] === 0) add('ReleaseValue', value, name);
        });
      }
      return result;
    };
  }
  try {
    use();
  } finally {
    Object.assign(api, originals);
  }
  return { owned: [...owned.keys()], handedOver };
}

function pointers(list: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => readPointer(list, index));
}

function assertAllGivenBack(use: () => void): void {
  const { owned, handedOver } = ledgerOf(use);
  assert.deepEqual(owned, []);
  assert(handedOver > 0, 'the ledger saw nothing');
}

function loadAndRun(name: string, options: LoadOptions = CPU): void {
  const session = Session.load(modelPath(name), options);
  try {
    const runner = new Runner(session.handle);
    try {
      runOnce(runner, session.signature, sampleInputs(fixture(name), new Random(1), 3));
      session.allocatorStats();
    } finally {
      runner.dispose();
    }
  } finally {
    session.release();
  }
}

test('the ledger knows every function that creates something', () => {
  const creating = (Object.keys(FUNCTIONS) as Name[]).filter((name) => name.startsWith('Create'));
  const known = [...Object.keys(HANDED_OVER), ...KEPT_BY_THE_PROCESS, 'CreateAndRegisterAllocatorV2'];
  assert.deepEqual(
    creating.filter((name) => !known.includes(name)),
    [],
  );
});

test('loading, running and releasing gives everything back', () => {
  for (const name of ['mlp', 'simple_string', 'zipmap', 'multitype', 'empty_rows']) {
    assertAllGivenBack(() => loadAndRun(name));
  }
});

test('so does a session with a memory limit', () => {
  assertAllGivenBack(() => loadAndRun('mlp', { ...CPU, arenaMaxBytes: 2 ** 20 }));
});

test('so does listing the providers', () => {
  assertAllGivenBack(() => availableProviders());
});

test('failed loads give everything back', () => {
  const limited = { ...CPU, arenaMaxBytes: 2 ** 20 };
  const attempts: [string, LoadOptions][] = [
    [filePath('not-a-model.onnx', 'noise'), CPU],
    [filePath('not-a-model.onnx', 'noise'), limited],
    [modelPath('mlp'), { ...CPU, sessionConfig: { '': 'x' } }],
    [modelPath('mlp'), { ...CPU, arenaMaxBytes: 1000 }],
  ];
  for (const [file, options] of attempts) {
    assertAllGivenBack(() => {
      assert.throws(() => Session.load(file, options));
    });
  }
});

test('failed runs and refused tensors give everything back', () => {
  assertAllGivenBack(() => {
    const session = Session.load(modelPath('lookup'), CPU);
    const runner = new Runner(session.handle);
    assert.throws(() =>
      runOnce(runner, session.signature, new Map([['index', tensor('INT64', [1], BigInt64Array.of(99n))]])),
    );
    assert.throws(() => runner.tensorOver('INT64', 4096, 4, [1]));
    runner.dispose();
    session.release();
  });
});

for (const provider of ['cuda', 'tensorrt'] as const) {
  test(`${provider}'s options are taken by ONNX Runtime, which then misses the library, and everything is given back`, (t) => {
    if (existsSync(path.join(libraryDirectory(), 'libonnxruntime_providers_shared.so'))) {
      t.skip('the GPU providers are installed');
      return;
    }
    for (const step of providerSteps({ provider, deviceId: 0, arenaMaxBytes: 2 ** 30 })) {
      assertAllGivenBack(() => {
        withSessionOptions(CPU, (sessionOptions) => {
          assert.throws(
            () => appendProvider(sessionOptions, step),
            (error) => error instanceof OrtError && /libonnxruntime_providers_shared\.so/.test(error.message),
          );
        });
      });
    }
  });
}
