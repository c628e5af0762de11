/** Reading a repository, and a bare model file: which models there are and what keeps others from being found. */
import assert from 'node:assert/strict';
import { closeSync, mkdirSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { DEFAULT_MODEL_CONFIG } from '../../../src/config/model-config.ts';
import { scanRepository, singleModel } from '../../../src/repository/repository.ts';
import { GOOD, MODEL_BYTES, makeTree, modelOf, versionsOf } from './tree.ts';

test('links to files, to versions and to models are followed', (t) => {
  const store = makeTree(t, {
    'weights.bin': MODEL_BYTES,
    'v/model.onnx': MODEL_BYTES,
    'model/7/model.onnx': MODEL_BYTES,
  });
  const root = makeTree(t, {
    'a/1/model.onnx': { link: join(store, 'weights.bin') },
    'b/2': { link: join(store, 'v') },
    c: { link: join(store, 'model') },
  });
  const { models, problems } = scanRepository(root);
  assert.deepEqual(problems, []);
  assert.deepEqual(
    models.map((model) => [model.name, model.problem, versionsOf(model), model.versions[0]?.sizeBytes]),
    [
      ['a', undefined, ['1'], MODEL_BYTES.byteLength],
      ['b', undefined, ['2'], MODEL_BYTES.byteLength],
      ['c', undefined, ['7'], MODEL_BYTES.byteLength],
    ],
  );
  assert.equal(models[0]?.versions[0]?.path, join(root, 'a/1/model.onnx'));
});

for (const name of [
  'example ż 대 김',
  'x'.repeat(150),
  '__proto__',
  'constructor',
  '100%',
  'a"b\\c',
  'e\u0301',
  '-rf',
]) {
  test(`a model may be named ${JSON.stringify(name.slice(0, 20))}`, (t) => {
    const model = modelOf(t, { [`${name}/1/model.onnx`]: MODEL_BYTES }, name);
    assert.equal(model.problem, undefined);
    assert.equal(model.name, name);
  });
}

test('a directory whose name cannot be that of a model is told, and the rest is served', (t) => {
  const root = makeTree(t, { ...GOOD, 'a\nb/1/model.onnx': MODEL_BYTES });
  const { models, problems } = scanRepository(root);
  assert.deepEqual(
    models.map((model) => model.name),
    ['good'],
  );
  const message = 'cannot be a model: its name contains a control character';
  assert.deepEqual(problems, [{ path: join(root, 'a\nb'), message }]);
});

test('a directory whose name is not UTF-8 is told, and the rest is served', (t) => {
  const root = makeTree(t, GOOD);
  mkdirSync(Buffer.concat([Buffer.from(`${root}/`), Buffer.from([0x78, 0xff])]));
  const { models, problems } = scanRepository(root);
  assert.equal(models.length, 1);
  assert.deepEqual(
    problems.map((problem) => problem.message),
    ['is not valid UTF-8'],
  );
});

test('hidden entries and stray files are passed over, but a stray model file is told', (t) => {
  const root = makeTree(t, { ...GOOD, '.git/1/model.onnx': MODEL_BYTES, 'README.md': 'x', 'm.onnx': MODEL_BYTES });
  const { models, problems } = scanRepository(root);
  assert.deepEqual(
    models.map((model) => model.name),
    ['good'],
  );
  assert.deepEqual(problems, [
    { path: join(root, 'm.onnx'), message: 'is not served from here; move it to <model>/1/model.onnx' },
  ]);
});

test('a repository without a model, of any kind, says what was expected', (t) => {
  const root = makeTree(t, { file: 'x', 'empty/': '', loop: { link: 'loop' }, gone: { link: 'nowhere' } });
  const message = (name: string) =>
    scanRepository(join(root, name))
      .problems.map((problem) => problem.message)
      .join();
  assert.equal(message('missing'), 'does not exist');
  assert.equal(message('file'), 'is a file; a model repository is a directory (serve one model file as MODEL)');
  assert.equal(message('empty'), 'holds no models; expected <model>/<version>/model.onnx');
  assert.equal(message('loop'), 'is a link that leads back to itself');
  assert.equal(message('gone'), 'is a link to "nowhere", which does not exist');
});

test('a repository given one level too deep is recognised', (t) => {
  const root = makeTree(t, { 'm/1/model.onnx': MODEL_BYTES });
  const { models } = scanRepository(join(root, 'm'));
  assert.deepEqual(
    models.map((model) => model.problem),
    ['is a version and not a model; the model repository is the directory two levels above model.onnx'],
  );
});

test('of more than 1000 models the first 1000 by name are read, and that is told', (t) => {
  const tree = Object.fromEntries(
    Array.from({ length: 1002 }, (_, index) => [`m${String(index).padStart(4, '0')}/`, '']),
  );
  const root = makeTree(t, tree);
  const { models, problems } = scanRepository(root);
  assert.equal(models.length, 1000);
  assert.equal(models.at(-1)?.name, 'm0999');
  assert.deepEqual(problems, [{ path: root, message: 'holds 1002 models; only the first 1000 by name are read' }]);
});

test('a directory of more than 10,000 entries is refused whole, since any choice among them would be by chance', (t) => {
  const root = makeTree(t, { ...GOOD, 'm/1/model.onnx': MODEL_BYTES });
  for (let index = 0; index < 10_000; index++) {
    closeSync(openSync(join(root, 'm', `file${index}`), 'w'));
  }
  const { models, problems } = scanRepository(root);
  assert.deepEqual(problems, []);
  assert.deepEqual(
    models.map((model) => model.problem),
    [undefined, 'holds more than 10000 entries'],
  );
});

test('a relative repository gives absolute paths', (t) => {
  const root = makeTree(t, GOOD);
  const before = process.cwd();
  process.chdir(root);
  try {
    assert.equal(scanRepository('.').models[0]?.versions[0]?.path, join(process.cwd(), 'good/1/model.onnx'));
    assert.equal(singleModel('good/1/model.onnx').versions[0]?.path, join(process.cwd(), 'good/1/model.onnx'));
  } finally {
    process.chdir(before);
  }
});

test('a bare file is served under its stem as version 1 with the default configuration', (t) => {
  const root = makeTree(t, { 'example ż 대 김.onnx': MODEL_BYTES, 'config.json': '{"max_batch_size": 8}' });
  const path = join(root, 'example ż 대 김.onnx');
  assert.deepEqual(singleModel(path), {
    name: 'example ż 대 김',
    directory: root,
    config: DEFAULT_MODEL_CONFIG,
    versions: [{ version: '1', path, sizeBytes: MODEL_BYTES.byteLength }],
    ignored: [],
  });
});

for (const [file, problem] of [
  ['missing.onnx', 'does not exist'],
  ['directory.onnx', 'is a directory; give a directory of models as --model-repository'],
  ['model.bin', 'is not an .onnx file'],
  ['.onnx', 'gives no name to its model: "" is empty'],
  ['empty.onnx', 'is empty'],
  ['dangling.onnx', 'is a link to "gone", which does not exist'],
] as const) {
  test(`the bare file ${file} is refused with its reason`, (t) => {
    const root = makeTree(t, {
      'directory.onnx/': '',
      'model.bin': MODEL_BYTES,
      '.onnx': MODEL_BYTES,
      'empty.onnx': '',
      'dangling.onnx': { link: 'gone' },
    });
    assert.equal(singleModel(join(root, file)).problem, problem);
  });
}
