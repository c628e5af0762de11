/** Runs that a model's configuration asks for before it serves: they are made with the values that were asked for, and one that fails keeps a version from serving. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { assertDone, ControlledServer } from '../support/control.ts';
import { assertRefused, get, infer, json, jsonBody, jsonRequest } from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

/** `lookup` fails for an index above 7. */
const indices = (...values: number[]) => Buffer.from(BigInt64Array.from(values, BigInt).buffer);
const indexRequest = (value: unknown, datatype = 'INT64') =>
  JSON.stringify({ inputs: [{ name: 'index', datatype, shape: [2], data: [1, value] }] });
const words = encodeBytesTensor(Array.from({ length: 32 }, (_, n) => Buffer.from(String(n))));

const FILES: Readonly<Record<string, string | Uint8Array>> = {
  'good.json': indexRequest(7),
  'bad.json': indexRequest(8),
  'other.json': indexRequest(1, 'INT32'),
  'good.raw': indices(7, 0),
  'bad.raw': indices(7, 8),
  'words.raw': words,
  'cut.raw': words.subarray(0, 100),
};

const lookup = (...warmup: object[]) => ({ fixture: 'lookup', config: { warmup } });
const strings = (...warmup: object[]) => ({ fixture: 'simple_string', config: { warmup } });
const index = (about: object) => ({ data: 'zeros', rows: 2, inputs: [{ name: 'index', ...about }] });
const both = (file: string) => ['INPUT0', 'INPUT1'].map((name) => ({ name, file }));

const GOOD = {
  lookup: lookup({ data: 'zeros', rows: 4 }, { data: 'random', rows: 64, runs: 3 }, index({ file: 'good.raw' }), {
    request: 'good.json',
  }),
  simple_string: strings({ data: 'random' }, { data: 'zeros', rows: 2, inputs: both('words.raw') }),
  no_batch: { config: { warmup: [{ data: 'zeros' }, { data: 'random', inputs: [{ name: 'INPUT0', dims: [16] }] }] } },
};
const BAD: readonly (readonly [string, object, RegExp])[] = [
  ['value', lookup({ data: 'zeros' }, { request: 'bad.json' }), /its warm-up 2 of 2 failed: .*out of data bounds/],
  ['file', lookup(index({ file: 'bad.raw' })), /its warm-up 1 of 1 failed: .*out of data bounds/],
  ['size', lookup({ ...index({ file: 'bad.raw' }), rows: 3 }), /"index" has 16 bytes, and its shape asks for 24/],
  ['rows', lookup({ data: 'zeros', rows: 65 }), /it has 65 rows, and a batch has at most 64/],
  ['whole', { fixture: 'no_batch', config: { warmup: [{ data: 'zeros', rows: 2 }] } }, /takes no batches/],
  ['dims', lookup(index({ dims: [1] })), /dims of input "index" are \[1\], and the model has \[\]/],
  ['input', lookup({ data: 'zeros', inputs: [{ name: 'x' }] }), /the model has no input "x"/],
  ['datatype', lookup({ request: 'other.json' }), /failed: .*INT32/],
  ['empty', strings({ data: 'zeros' }), /its warm-up 1 of 1 failed/],
  ['cut', strings({ data: 'zeros', rows: 2, inputs: both('cut.raw') }), /"INPUT0" is no serialised tensor/],
  ['missing', lookup({ request: 'none.json' }), /warmup\/none\.json, asked for by its configuration, does not exist/],
];

const repository = makeRepository({ after }, { ...GOOD, ...Object.fromEntries(BAD) });
for (const model of [...Object.keys(GOOD), ...BAD.map(([name]) => name)]) {
  for (const [name, content] of Object.entries(FILES)) repository.writeFile([model, 'warmup', name], content);
}
const args = ['--model-control-mode', 'explicit', '--load-model', '*'];
const server = launchServer({ after }, { repository: repository.dir, args });
const control = new ControlledServer(server, repository);

before(async () => {
  await server.ready();
});

for (const model of Object.keys(GOOD)) {
  test(`${model} is served after its warm-ups, which are in its configuration`, async () => {
    const rows = model === 'no_batch' ? 1 : 2;
    const answer = await infer(server.url, model, jsonRequest(sampleInputs(fixture(model), seedFromEnv(), rows)));
    assert.equal(answer.status, 200, answer.body.toString());
    assert((json(await get(server.url, `/v2/models/${model}/config`)).warmup as object[]).length > 0);
  });
}

describe('a warm-up that fails keeps the version from being served', () => {
  for (const [model, , reason] of BAD) {
    test(model, async () => {
      const [entry] = await control.indexOf(model);
      assert.equal(entry!.state, 'UNAVAILABLE');
      assert.match(entry!.reason, reason);
    });
  }
});

test('one that fails leaves what served before serving', async () => {
  const config = JSON.stringify({ warmup: [{ request: 'bad.json' }] });
  assertRefused(await control.load('lookup', { config }), 'BAD_REQUEST', /its warm-up 1 of 1 failed/);
  const answer = await infer(server.url, 'lookup', jsonBody(indexRequest(3)));
  assert.equal(answer.status, 200);
  assert.match((await control.indexOf('lookup'))[0]!.reason, /goes on: its warm-up 1 of 1 failed/);
  const good = JSON.stringify({ warmup: [{ request: 'good.json' }] });
  assertDone(await control.load('lookup', { config: good }));
});

test('a configuration given with a load reads no files but those meant for that', async () => {
  for (const request of ['../../lookup/config.json', '/etc/passwd', '..', '.hidden', 'a/b']) {
    const config = JSON.stringify({ warmup: [{ request }] });
    assertRefused(
      await control.load('lookup', { config }),
      'BAD_REQUEST',
      /config:1:23: warmup\[0\]\.request is .* the name of a file in the directory "warmup"/,
    );
  }
});
