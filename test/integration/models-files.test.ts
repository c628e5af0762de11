/**
 * Files that are no models, or no longer: each is told as the reason of its own model, and keeps no other model from being served.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { exitCode } from '../../src/config/exit-codes.ts';
import { type Answer, assertRefused, get, infer, json, jsonBody, sendTogether } from '../support/exchange.ts';
import { EXTERNAL_FILE } from '../support/fixtures-compute.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { modelFiles, writeModel } from '../support/models.ts';
import { declare, encodeModel, externalConstant, node, spec } from '../support/onnx.ts';
import { requestBytes } from '../support/raw.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, startServer } from '../support/server.ts';

const GOOD = plusModel(1);
const ONE = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}');

/** What stands in the place of the model's file, and how its reason begins. */
const CONTENTS: Readonly<Record<string, readonly [content: string | Uint8Array, reason: RegExp]>> = {
  empty: ['', /is empty/],
  html: ['<html><body>404 Not Found</body></html>', /HTML/],
  xml: ['<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', /HTML or XML/],
  json: ['{"error":"not found"}', /JSON/],
  git_lfs: [
    'version https://git-lfs.github.com/spec/v1\noid sha256:4665a6a3c3b0fb1fa2e4b6f2b2c6f8f9a1ac1f4c\nsize 2327524\n',
    /Git-LFS pointer.*git lfs pull/,
  ],
  zip: ['PK\x03\x04rest of the archive', /ZIP/],
  gzip: [Uint8Array.of(0x1f, 0x8b, 8, 0, 0, 0, 0, 0), /gzip/],
  text: ['this is not a model at all', /protobuf|model/i],
  zeros: [new Uint8Array(1000), /protobuf|model/i],
  cut_5: [GOOD.subarray(0, GOOD.length - 5), /protobuf|model/i],
  cut_half: [GOOD.subarray(0, GOOD.length >> 1), /protobuf|model|graph/i],
  one_byte: [GOOD.subarray(0, 1), /protobuf|model/i],
  junk_behind: [Buffer.concat([GOOD, Buffer.from('junk')]), /protobuf|model/i],
};

const repository = makeRepository({ after }, {});
repository.writeFile(['good', '1', 'model.onnx'], GOOD);
for (const [model, [content]] of Object.entries(CONTENTS)) repository.writeFile([model, '1', 'model.onnx'], content);

/** Other things than a file. */
const PLACES: Readonly<Record<string, readonly [make: (path: string) => void, reason: RegExp]>> = {
  directory: [(path) => fs.mkdirSync(path), /is a directory/],
  dangling: [
    (path) => fs.symlinkSync('/no/such/model.onnx', path),
    /link to "\/no\/such\/model\.onnx", which does not exist/,
  ],
  loop: [(path) => fs.symlinkSync(path, path), /leads back to itself/],
  device: [(path) => fs.symlinkSync('/dev/zero', path), /not a regular file/],
  pipe: [(path) => fs.symlinkSync('/dev/stdin', path), /not a regular file|is empty|does not exist|cannot be read/],
};
for (const [model, [make]] of Object.entries(PLACES)) {
  fs.mkdirSync(repository.path(model, '1'), { recursive: true });
  make(repository.path(model, '1', 'model.onnx'));
}
// Weights in a file of their own, which is not there, or cut.
repository.add('external');
for (const model of ['external_missing', 'external_cut']) repository.add(model, { fixture: 'external' });
fs.rmSync(repository.path('external_missing', '1', EXTERNAL_FILE));
fs.truncateSync(repository.path('external_cut', '1', EXTERNAL_FILE), 4);
/** Weights that lie, or seem to lie, outside of the directory of the model, and what is no file. */
const SECRET = repository.writeFile(['secret.bin'], new Uint8Array(32));
const LOCATIONS: Readonly<Record<string, readonly [location: string, make?: (path: string) => void]>> = {
  parent: ['../../secret.bin'],
  absolute: [SECRET],
  winding: ['./sub/../../../secret.bin'],
  link_out: ['weights.bin', (path) => fs.symlinkSync(SECRET, path)],
  weights_pipe: ['weights.bin', (path) => execFileSync('mkfifo', [path])],
  weights_directory: ['weights.bin', (path) => fs.mkdirSync(path)],
};
for (const [model, [location, make]] of Object.entries(LOCATIONS)) {
  const bias = externalConstant('bias', 'FP32', [8], { location, offset: 0, length: 32 });
  const [x, y] = ['x', 'y'].map((name) => declare(spec(name, 'FP32', ['N', 8])));
  const graph = { nodes: [node('Add', ['x', 'bias'], ['y'])], constants: [bias], inputs: [x!], outputs: [y!] };
  repository.writeFile([model, '1', 'model.onnx'], encodeModel(graph));
  make?.(repository.path(model, '1', 'weights.bin'));
}
const EXTERNAL = /external\.onnx_data|external data|out of bounds|file/i;
// A good older version beside a broken newer one.
repository.writeFile(['half_good', '1', 'model.onnx'], GOOD);
repository.writeFile(['half_good', '2', 'model.onnx'], CONTENTS.cut_half![0]);
repository.writeConfig('half_good', { version_policy: 'all' });
repository.writeFile(['bad_config', '1', 'model.onnx'], GOOD);
repository.writeConfig('bad_config', '{"max_batch_sice": 8}');

const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

interface IndexEntry {
  readonly name: string;
  readonly version: string;
  readonly state: string;
  readonly reason: string;
}

async function index(): Promise<IndexEntry[]> {
  const [answer] = await sendTogether(server.url, [requestBytes('POST', '/v2/repository/index')]);
  return JSON.parse(answer!.body.toString());
}

/** Reason why a model is not served: in the index where its version is known, otherwise in the log. */
async function reasonOf(model: string, version = '1'): Promise<string> {
  const entry = (await index()).find((one) => one.name === model && one.version === version);
  if (entry === undefined) return String((await server.log((line) => line.model === model && 'reason' in line)).reason);
  assert.equal(entry.state, 'UNAVAILABLE', model);
  return entry.reason;
}

function notServed(answer: Answer): void {
  if (answer.status === 404) assertRefused(answer, 'MODEL_NOT_FOUND', /./);
  else assertRefused(answer, 'NOT_READY', /./);
}

// Story: one bad file ended the process, or kept every other model from being served (corrupt-model-files, 46).
test('the good model beside them all is served', async () => {
  const answer = await infer(server.url, 'good', ONE);
  assert.equal(answer.status, 200);
  assert.match(answer.body.toString(), /"data":\[2\]/);
  assert.equal((await get(server.url, '/v2/models/external/ready')).status, 200);
});

test('each file that is no model is told as the reason of its own model', async () => {
  for (const [model, [, reason]] of Object.entries({ ...CONTENTS, ...PLACES })) {
    const text = await reasonOf(model);
    assert.match(text, reason, model);
    assert(!text.includes('\n'), `${model}: ${JSON.stringify(text)} is more than a line`);
    notServed(await infer(server.url, model, ONE));
    notServed(await get(server.url, `/v2/models/${model}`));
  }
});

test('weights in a file beside the model that is missing or cut are told, and no numbers are made up', async () => {
  for (const model of ['external_missing', 'external_cut']) {
    assert.match(await reasonOf(model), EXTERNAL, model);
    assert.equal((await get(server.url, `/v2/models/${model}/ready`)).status, 503);
  }
});

// Story: a model could name any file of the host as its weights (external-data-files, 47).
test('weights outside of the directory of the model are refused, and what is no file is not waited for', async () => {
  for (const model of Object.keys(LOCATIONS)) {
    assert.match(
      await reasonOf(model),
      /escapes model directory|Absolute path not allowed|cannot get file size/,
      model,
    );
    notServed(await infer(server.url, model, ONE));
  }
});

test('a faulty configuration is told with its place and leaves the others alone', async () => {
  const why = /config\.json:1:\d+: unknown key "max_batch_sice".*max_batch_size/;
  assert.match(await reasonOf('bad_config'), why);
  // Story: such a model was missing from the index and answered as if nobody knew it.
  assert((await index()).some(({ name }) => name === 'bad_config'));
  assertRefused(await infer(server.url, 'bad_config', ONE), 'NOT_READY', why);
  assert.equal(await server.metric('batchport_model_ready', { model: 'bad_config' }), 0);
});

test('a good version is served beside a broken newer one, and is what no version means', async () => {
  assert.match(await reasonOf('half_good', '2'), /protobuf|model|graph/i);
  const answer = await infer(server.url, 'half_good', ONE);
  assert.equal(answer.status, 200);
  assert.equal(json(answer).model_version, '1');
  assertRefused(await infer(server.url, 'half_good', ONE, '2'), 'NOT_READY', /version 2 is UNAVAILABLE: /);
  assert.equal((await get(server.url, '/v2/models/half_good/versions/2/ready')).status, 503);
});

test('the server itself is ready: models that failed are left out', async () => {
  assert.deepEqual(json(await get(server.url, '/v2/health/ready')), { ready: true });
  assert.equal((await get(server.url, '/v2/health/live')).status, 200);
});

test('no model file cut at any place ends the process that loads it', async (t) => {
  const cuts = makeRepository(t, {});
  cuts.writeFile(['whole', '1', 'model.onnx'], GOOD);
  const lengths = Array.from({ length: 24 }, (_, n) => 1 + Math.floor((n * GOOD.length) / 24));
  for (const length of lengths) cuts.writeFile([`cut_${length}`, '1', 'model.onnx'], GOOD.subarray(0, length));
  const other = await startServer(t, { repository: cuts.dir });
  const { models, processes } = (await other.status()) as unknown as {
    models: { name: string; state: string; reason: string }[];
    processes: { role: string; restarts: number }[];
  };
  for (const { name, state, reason } of models) {
    assert.equal(state, name === 'whole' ? 'READY' : 'UNAVAILABLE', name);
    assert.equal(reason === '', name === 'whole', name);
  }
  assert(processes.every(({ restarts }) => restarts === 0));
  assert.equal((await infer(other.url, 'whole', ONE)).status, 200);
});

test('--strict-readiness makes one failed model a server that is not ready, with the reason', async (t) => {
  const two = makeRepository(t, {});
  two.writeFile(['good', '1', 'model.onnx'], GOOD);
  two.writeFile(['cut', '1', 'model.onnx'], CONTENTS.cut_half![0]);
  const strict = await startServer(t, { repository: two.dir, args: ['--strict-readiness'] });
  const answer = await get(strict.url, '/v2/health/ready');
  assert.equal(answer.status, 503);
  const { ready, error } = json(answer);
  assert.equal(ready, false);
  assert.match(String(error), /^cut\/1: /);
  assert.equal((await infer(strict.url, 'good', ONE)).status, 200);
  assert.equal((await get(strict.url, '/v2/health/live')).status, 200);
});

describe('a single file', { concurrency: true }, () => {
  test('that is no model ends the start with a reason and a code of its own', async (t) => {
    const dir = temporaryDirectory(t, 'model');
    const file = (name: string, content: string | Uint8Array) => {
      fs.writeFileSync(`${dir}/${name}`, content);
      return `${dir}/${name}`;
    };
    for (const [path, reason] of [
      [file('cut.onnx', CONTENTS.cut_half![0]), /cut\.onnx cannot be served: /],
      [file('lfs.onnx', CONTENTS.git_lfs![0]), /Git-LFS pointer/],
      [`${dir}/none.onnx`, /does not exist/],
    ] as const) {
      const one = launchServer(t, { args: [path] });
      assert.deepEqual(await one.ended(), { code: exitCode('MODEL'), signal: null });
      assert.deepEqual(one.output, []);
      assert(
        one.logs.some(({ text }) => reason.test(String(text))),
        `${path}: ${JSON.stringify(one.logs)}`,
      );
    }
  });

  test('is served under its name', async (t) => {
    const path = writeModel(temporaryDirectory(t, 'model'), 'rows', 'Größe 1.onnx');
    const one = await startServer(t, { args: [path] });
    assert.equal((await get(one.url, `/v2/models/${encodeURIComponent('Größe 1')}/ready`)).status, 200);
  });
});

test('a file that cannot be read for lack of permission is told so', async (t) => {
  if (process.getuid?.() === 0) {
    t.skip('root reads every file');
    return;
  }
  const closed = makeRepository(t, ['rows']);
  const path = closed.writeFile(['closed', '1', 'model.onnx'], modelFiles('rows').model);
  fs.chmodSync(path, 0);
  const other = await startServer(t, { repository: closed.dir });
  const { reason } = await other.log((line) => line.model === 'closed' && 'reason' in line);
  assert.match(String(reason), /permission denied/);
});
