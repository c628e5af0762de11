/** models.json: models without a directory, faults of one that harm no other, and which configuration counts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readConfigFile, readModelDirectory } from '../../../src/repository/model-directory.ts';
import { readModelsFile } from '../../../src/repository/models-file.ts';
import { scanRepository } from '../../../src/repository/repository.ts';
import { makeRepository, type TestRepository } from '../../support/repository.ts';

const SHA256 = 'a'.repeat(64);
const source = { url: 'https://host/model.onnx?secret', sha256: SHA256 };

function write(repository: TestRepository, models: unknown): void {
  repository.writeFile(['models.json'], JSON.stringify({ models }));
}

test('a model may have no directory, one without a configuration, or one with, whose configuration then counts', (t) => {
  const repository = makeRepository(t, {
    bare: { fixture: 'id_fp32' },
    own: { fixture: 'id_fp32', config: { slo_ms: 5 } },
  });
  write(repository, { listed: { source, slo_ms: 7 }, bare: { slo_ms: 6 }, own: { slo_ms: 9 } });
  const { models, problems } = scanRepository(repository.dir);
  assert.deepEqual(problems, []);
  assert.deepEqual(
    models.map(({ name, config, versions, problem }) => [
      name,
      config.sloMs,
      versions.map(({ version }) => version),
      problem,
    ]),
    [
      ['bare', 6, ['1'], undefined],
      ['listed', 7, ['1'], undefined],
      ['own', 5, ['1'], undefined],
    ],
  );
  const [, listed, own] = models;
  assert.deepEqual(listed!.versions[0]!.source?.files, [{ path: 'model.onnx', ...source }]);
  assert.equal(listed!.versions[0]!.path, '');
  assert.match(own!.ignored.map(({ reason }) => reason).join(), /is not read, as there is a config\.json/);
});

test('a source takes the place of version directories, and says so', (t) => {
  const repository = makeRepository(t, {
    model: { fixture: { 1: 'id_fp32', 2: 'id_fp32' }, config: { source: { ...source, version: 7 } } },
  });
  const { versions, ignored, problem } = readModelDirectory(repository.path('model'), 'model');
  assert.equal(problem, undefined);
  assert.deepEqual(
    versions.map(({ version, sizeBytes }) => [version, sizeBytes]),
    [['7', 0]],
  );
  assert.deepEqual(
    ignored.map(({ name }) => name),
    ['1', '2'],
  );
});

test('a version_policy that leaves the version of the source out is a problem', (t) => {
  const repository = makeRepository(t, {});
  repository.writeConfig('model', { source, version_policy: { specific: [2] } });
  const { problem } = readModelDirectory(repository.path('model'), 'model');
  assert.match(problem ?? '', /asks for 2, but its source is version 1/);
});

test('a configuration that a client gives leaves the source as it is', (t) => {
  const repository = makeRepository(t, {});
  repository.writeConfig('model', { source });
  const { config } = readModelDirectory(repository.path('model'), 'model');
  const given = readModelDirectory(repository.path('model'), 'model', { ...config, sloMs: 3, source: undefined });
  assert.equal(given.config.sloMs, 3);
  assert.deepEqual(given.config.source, config.source);
  assert.deepEqual(given.versions[0]?.source, config.source);
});

test('faults have their place in the file, and are those of one model', (t) => {
  const repository = makeRepository(t, {});
  repository.writeFile(
    ['models.json'],
    `{ "models": {
    "good": { "source": ${JSON.stringify(source)} },
    "bad": { "source": ${JSON.stringify(source)},
             "slo_mz": 5 },
    "nothing": {},
    "a/b": {} },
  "model": 1 }`,
  );
  const { models, problems } = scanRepository(repository.dir);
  assert.deepEqual(
    problems.map(({ message }) => message),
    ['7:3: unknown key "model" (did you mean "models"?)', '6:5: a model cannot have this name: it contains "/"'],
  );
  const reasons = models.map(({ name, problem }) => [name, problem] as const);
  assert.deepEqual(reasons, [
    ['bad', '../models.json:4:14: unknown key "slo_mz" (did you mean "slo_ms"?)'],
    ['good', undefined],
    ['nothing', 'has no source in models.json, and no directory'],
  ]);
  // It is known, and tells its reason.
  assert.equal(models[0]!.versions.length, 1);
  const file = readConfigFile(repository.path('bad'), 'bad');
  assert(file !== undefined && 'result' in file && !file.result.ok);
});

for (const [what, content, pattern] of [
  ['that is no JSON', '{"models": ', /^1:12: /],
  ['without models', '{}', /it must be an object with the key "models"/],
  ['that is a list', '[]', /it must be an object with the key "models"/],
  ['whose models are a list', '{"models": []}', /it must be an object with the key "models"/],
  ['that is too large', ' '.repeat(4 * 2 ** 20 + 1), /bytes/],
] as const) {
  test(`a models.json ${what} is one problem, and the directories are served`, (t) => {
    const repository = makeRepository(t, { model: { fixture: 'id_fp32' } });
    repository.writeFile(['models.json'], content);
    const { models, problems } = scanRepository(repository.dir);
    assert.equal(problems.length, 1);
    assert.match(problems[0]!.message, pattern);
    assert.deepEqual(
      models.map(({ name, problem }) => [name, problem]),
      [['model', undefined]],
    );
  });
}

test('names that mean something to JavaScript are names of models like any other', (t) => {
  const repository = makeRepository(t, {});
  repository.writeFile(
    ['models.json'],
    `{"models": {"__proto__": {"source": ${JSON.stringify(source)}}, "constructor": {}}}`,
  );
  assert.deepEqual([...readModelsFile(repository.dir).models.keys()], ['__proto__', 'constructor']);
});
