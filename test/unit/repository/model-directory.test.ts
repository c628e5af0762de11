/** Reading the directory of one model: which versions are served, and one clear line for everything that is not. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmodSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { DEFAULT_MODEL_CONFIG } from '../../../src/config/model-config.ts';
import { scanRepository } from '../../../src/repository/repository.ts';
import { GOOD, MODEL_BYTES, makeTree, modelOf, type Tree, versionsOf, withoutPrivileges } from './tree.ts';

const LFS = 'version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 580000\n';

const manyVersions: Tree = {
  ...Object.fromEntries(
    ['1', '9', '10', '01', '2.0', 'model', '.tmp', '-1', '0'].map((version) => [
      `m/${version}/model.onnx`,
      MODEL_BYTES,
    ]),
  ),
};

for (const [policy, versions] of [
  [undefined, ['10']],
  [{ latest: 1 }, ['10']],
  [{ latest: 2 }, ['10', '9']],
  [{ latest: 50 }, ['10', '9', '1']],
  ['all', ['10', '9', '1']],
  [{ specific: [9] }, ['9']],
  [{ specific: ['1', 10] }, ['10', '1']],
] as const) {
  test(`version policy ${JSON.stringify(policy) ?? '(none)'} serves ${versions.join(', ')} of 1, 9 and 10`, (t) => {
    const config = policy === undefined ? '{}' : JSON.stringify({ version_policy: policy });
    const model = modelOf(t, { ...manyVersions, 'm/config.json': config });
    assert.equal(model.problem, undefined);
    assert.deepEqual(versionsOf(model), versions);
    const ignoredNames = model.ignored.map((entry) => entry.name).sort();
    assert.deepEqual(ignoredNames, ['-1', '0', '01', '2.0', 'model']);
    assert.ok(model.ignored.every((entry) => entry.reason.startsWith('is not a version')));
  });
}

test('a version asked for by name that is not there is named', (t) => {
  const tree: Tree = { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json': '{"version_policy": {"specific": [1, 4]}}' };
  const model = modelOf(t, tree);
  assert.deepEqual(versionsOf(model), ['1']);
  const reason = 'is asked for by version_policy, but there is no such directory';
  assert.deepEqual(model.ignored, [{ name: '4', reason }]);
});

test('a model none of whose wanted versions exists has that as its problem', (t) => {
  const tree: Tree = { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json': '{"version_policy": {"specific": [4]}}' };
  assert.equal(
    modelOf(t, tree).problem,
    'has no version to serve; expected 1/model.onnx; "4" is asked for by version_policy, but there is no such directory',
  );
});

test('a version directory that has no model yet is passed over for the next lower one', (t) => {
  const model = modelOf(t, { 'm/1/model.onnx': MODEL_BYTES, 'm/2/': '' });
  assert.deepEqual(versionsOf(model), ['1']);
  assert.deepEqual(model.ignored, [{ name: '2', reason: 'is empty; it must hold model.onnx' }]);
});

test('of more than 1000 versions the highest 1000 are served and the rest is counted', (t) => {
  const tree = Object.fromEntries(
    Array.from({ length: 1003 }, (_, index) => [`m/${index + 1}/model.onnx`, MODEL_BYTES]),
  );
  const model = modelOf(t, { ...tree, 'm/config.json': '{"version_policy": "all"}' });
  assert.equal(model.versions.length, 1000);
  assert.equal(model.versions.at(-1)?.version, '4');
  assert.deepEqual(model.ignored, [
    { name: 'version_policy', reason: '3 lower versions are left out; at most 1000 are served' },
  ]);
});

test('paths are absolute, sizes are of the file, and the configuration is that of the model', (t) => {
  const root = makeTree(t, { 'm/3/model.onnx': MODEL_BYTES, 'm/config.json': '\ufeff{"max_batch_size": 8}' });
  const { models, problems } = scanRepository(root);
  assert.deepEqual(problems, []);
  assert.deepEqual(models, [
    {
      name: 'm',
      directory: join(root, 'm'),
      config: { ...DEFAULT_MODEL_CONFIG, maxBatchSize: 8 },
      versions: [{ version: '3', path: join(root, 'm/3/model.onnx'), sizeBytes: MODEL_BYTES.byteLength }],
      ignored: [],
    },
  ]);
});

/** Content of the directory of a model, and the one line that says why it cannot be served. */
const faultyModels: readonly (readonly [string, Tree, string])[] = [
  ['an empty directory', { 'm/': '' }, 'is empty; expected 1/model.onnx'],
  ['only hidden entries', { 'm/.tmp/model.onnx': MODEL_BYTES }, 'is empty; expected 1/model.onnx'],
  ['only labels', { 'm/labels.txt': 'x' }, 'has no version to serve; expected 1/model.onnx'],
  [
    'a model file but no version',
    { 'm/model.onnx': MODEL_BYTES },
    'has no version to serve; expected 1/model.onnx; "model.onnx" lies outside of any version; move it to 1/model.onnx',
  ],
  [
    'a version that is a file',
    { 'm/1': MODEL_BYTES },
    'has no version to serve; expected 1/model.onnx; "1" is a file; a version is a directory with model.onnx in it',
  ],
  [
    'a version with a letter',
    { 'm/v1/model.onnx': MODEL_BYTES },
    'has no version to serve; expected 1/model.onnx; "v1" is not a version: those are positive integers without leading zeros, such as 1',
  ],
  [
    'an empty version',
    { 'm/1/': '' },
    'has no version to serve; expected 1/model.onnx; "1" is empty; it must hold model.onnx',
  ],
  [
    'a model file in the wrong case',
    { 'm/1/Model.ONNX': MODEL_BYTES },
    'has no version to serve; expected 1/model.onnx; "1" holds no model.onnx; rename "Model.ONNX"',
  ],
  [
    'a model file of another name',
    { 'm/1/resnet.onnx': MODEL_BYTES, 'm/1/labels.txt': '' },
    'has no version to serve; expected 1/model.onnx; "1" holds no model.onnx; rename "resnet.onnx"',
  ],
  [
    'a model in text form',
    { 'm/1/model.pbtxt': 'ir_version: 8' },
    'has no version to serve; expected 1/model.onnx; "1" holds no model.onnx but "model.pbtxt"; only ONNX models of that name can be served',
  ],
  [
    'a model of another kind',
    { 'm/1/model.savedmodel/x': '', 'm/1/b': '', 'm/1/c': '', 'm/1/d': '' },
    'has no version to serve; expected 1/model.onnx; "1" holds no model.onnx but "b", "c", "d" and 1 more; only ONNX models of that name can be served',
  ],
  ['a directory named model.onnx', { 'm/1/model.onnx/': '' }, '1/model.onnx is a directory where a file must be'],
  ['a model file of no bytes', { 'm/1/model.onnx': '' }, '1/model.onnx is empty'],
  [
    'a Git-LFS pointer',
    { 'm/1/model.onnx': LFS },
    '1/model.onnx is a Git-LFS pointer and not the model itself; run "git lfs pull" where it was cloned',
  ],
  [
    'an error page',
    { 'm/1/model.onnx': '<html>404</html>' },
    '1/model.onnx is an HTML or XML page and not a model; a download probably brought an error page',
  ],
  [
    'a dangling link',
    { 'm/1/model.onnx': { link: '../gone.onnx' } },
    '1/model.onnx is a link to "../gone.onnx", which does not exist',
  ],
  [
    'a link to itself',
    { 'm/1/model.onnx': { link: 'model.onnx' } },
    '1/model.onnx is a link that leads back to itself',
  ],
  [
    'a dangling version',
    { 'm/1': { link: 'gone' } },
    'has no version to serve; expected 1/model.onnx; "1" is a link to "gone", which does not exist',
  ],
  [
    'a malformed configuration',
    { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json': '{\n  "max_batch_size": 8,\n}' },
    'config.json:3:1: expected a key in double quotes, found "}" after a comma (JSON has no trailing commas)',
  ],
  [
    'a configuration with two faults',
    { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json': '{"max_batch_siz": 8, "source": 1}' },
    'config.json:1:2: unknown key "max_batch_siz" (did you mean "max_batch_size"?); config.json:1:22: source is not supported by this version; remove it',
  ],
  [
    'a configuration that is a directory',
    { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json/': '' },
    'config.json is a directory where a file must be',
  ],
  [
    'a configuration that is a dangling link',
    { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json': { link: 'gone.json' } },
    'config.json is a link to "gone.json", which does not exist',
  ],
  [
    'a configuration over 1 MiB',
    { 'm/1/model.onnx': MODEL_BYTES, 'm/config.json': ' '.repeat(2 ** 20 + 5) },
    'config.json:1:1: is 1048577 bytes long; at most 1048576 are read',
  ],
];

for (const [what, tree, problem] of faultyModels) {
  test(`a model with ${what} says so in one line, and its neighbour is served`, (t) => {
    assert.equal(modelOf(t, tree).problem, problem);
  });
}

test('a model with a faulty configuration keeps the version that would be served without one, with the fault as its problem', (t) => {
  const model = modelOf(t, { 'm/1/model.onnx': MODEL_BYTES, 'm/2/model.onnx': MODEL_BYTES, 'm/config.json': '' });
  assert.deepEqual(versionsOf(model), ['2']);
  assert.equal(model.versions[0]?.problem, model.problem);
  assert.match(model.problem ?? '', /^config\.json:1:1: is empty/);
});

test('a faulty newest version is told beside the good older one that the policy also serves', (t) => {
  const model = modelOf(t, {
    'm/1/model.onnx': MODEL_BYTES,
    'm/2/model.onnx': LFS,
    'm/config.json': '{"version_policy": "all"}',
  });
  assert.equal(model.problem, undefined);
  assert.deepEqual(versionsOf(model), ['2', '1']);
  assert.match(model.versions[0]?.problem ?? '', /^2\/model\.onnx is a Git-LFS pointer/);
  assert.equal(model.versions[1]?.problem, undefined);
});

test('a named pipe in place of a model or a configuration is refused without waiting for it', (t) => {
  const root = makeTree(t, { 'm/1/': '', 'n/1/model.onnx': MODEL_BYTES });
  execFileSync('mkfifo', [join(root, 'm/1/model.onnx'), join(root, 'n/config.json')]);
  const { models } = scanRepository(root);
  assert.deepEqual(
    models.map((model) => model.problem),
    ['1/model.onnx is not a regular file', 'config.json is not a regular file'],
  );
});

test('files and directories that may not be read are told, and the rest is served', (t) => {
  const root = makeTree(t, {
    ...GOOD,
    'file/1/model.onnx': MODEL_BYTES,
    'directory/1/model.onnx': MODEL_BYTES,
    'version/1/model.onnx': MODEL_BYTES,
    'config/1/model.onnx': MODEL_BYTES,
    'config/config.json': '{}',
  });
  chmodSync(root, 0o755);
  const closed = ['file/1/model.onnx', 'directory', 'version/1', 'config/config.json'].map((name) => join(root, name));
  for (const path of closed) {
    chmodSync(path, 0);
  }
  const ran = withoutPrivileges(() => {
    const { models } = scanRepository(root);
    assert.deepEqual(Object.fromEntries(models.map((model) => [model.name, model.problem])), {
      config: 'config.json cannot be read: permission denied',
      directory: 'cannot be read: permission denied',
      file: '1/model.onnx cannot be read: permission denied',
      good: undefined,
      version: '1/model.onnx cannot be read: permission denied',
    });
  });
  for (const path of closed) {
    chmodSync(path, 0o755);
  }
  if (!ran) {
    t.skip('this process is root and cannot become another user');
  }
});

test('settings under a misspelt name are not silently ignored, nor a second file with them', (t) => {
  const model = modelOf(t, {
    'm/1/model.onnx': MODEL_BYTES,
    'm/config.json': '{"slo_ms": 5}',
    'm/config.pbtxt': 'max_batch_size: 3',
    'm/Config.json': '{}',
  });
  assert.equal(model.problem, undefined);
  assert.equal(model.config.sloMs, 5);
  assert.equal(model.config.maxBatchSize, undefined);
  assert.deepEqual(model.ignored, [
    { name: 'Config.json', reason: 'is not read; the name must be config.json' },
    { name: 'config.pbtxt', reason: '1:1: is not read, as there is a config.json' },
  ]);
});

test('a model of Triton is read with its own settings and file name, with warnings for what is passed over', (t) => {
  const pbtxt = 'max_batch_size: 3\ndefault_model_filename: "net.onnx"\nmetric_tags { key: "a" value: "b" }\n';
  const model = modelOf(t, { 'm/1/net.onnx': MODEL_BYTES, 'm/config.pbtxt': pbtxt });
  assert.equal(model.problem, undefined);
  assert.equal(model.config.maxBatchSize, 3);
  assert.match(model.versions[0]!.path, /1\/net\.onnx$/);
  assert.deepEqual(model.ignored, [
    { name: 'config.pbtxt', reason: '3:1: metric_tags is passed over: metrics have the labels that /metrics shows' },
  ]);
});

test('a faulty configuration of Triton is a problem of the model, with its places', (t) => {
  const model = modelOf(t, { 'm/1/model.onnx': MODEL_BYTES, 'm/config.pbtxt': 'max_batch_siz: 3' });
  assert.match(model.problem ?? '', /^config\.pbtxt:1:1: unknown field "max_batch_siz"/);
});

test('remarks about a directory full of strange entries are cut with a count', (t) => {
  const strange = Object.fromEntries(Array.from({ length: 150 }, (_, index) => [`m/x${index}/`, '']));
  const model = modelOf(t, { 'm/1/model.onnx': MODEL_BYTES, ...strange });
  assert.equal(model.ignored.length, 101);
  assert.deepEqual(model.ignored.at(-1), { name: '…', reason: 'and 50 more entries are ignored' });
});
