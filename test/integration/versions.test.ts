/**
 * Versions: which directories are versions, which of them a policy chooses, and that a URL means exactly one of them.
 *
 * Each version of each model adds its own number, so that an answer tells what ran.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { assertRefused, get, infer, json, jsonBody, sendTogether } from '../support/exchange.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { requestBytes } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

/** Versions, in an order in which neither names nor times help. */
const VERSIONS = ['9', '10', '1'];
const NO_VERSIONS = ['01', '2.0', 'model', '-1', '0', '1e1', '+3', '9007199254740993', 'v4', ' 5'];
const POLICIES: Readonly<Record<string, object>> = {
  usual: {},
  latest_1: { version_policy: { latest: 1 } },
  latest_2: { version_policy: { latest: 2 } },
  latest_many: { version_policy: { latest: 100 } },
  every: { version_policy: 'all' },
  only_9: { version_policy: { specific: ['9'] } },
  low_first: { version_policy: { specific: ['1', '10'] } },
};
const SERVED: Readonly<Record<string, readonly string[]>> = {
  usual: ['10'],
  latest_1: ['10'],
  latest_2: ['9', '10'],
  latest_many: ['1', '9', '10'],
  every: ['1', '9', '10'],
  only_9: ['9'],
  low_first: ['1', '10'],
};

const repository = makeRepository({ after }, {});
for (const [model, config] of Object.entries(POLICIES)) {
  for (const version of VERSIONS) repository.writeFile([model, version, 'model.onnx'], plusModel(Number(version)));
  for (const name of NO_VERSIONS) repository.writeFile([model, name, 'model.onnx'], plusModel(-1));
  repository.writeFile([model, '.tmp', 'model.onnx'], plusModel(-1));
  repository.writeConfig(model, config);
}
// An upload under way: the directory is there, the file is not.
fs.mkdirSync(repository.path('latest_1', '11'));
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const ZERO = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[0]}]}');

/** The version that an answer says it comes from, checked against what it computed. */
async function versionThatRan(model: string, version?: string): Promise<string> {
  const answer = await infer(server.url, model, ZERO, version);
  assert.equal(answer.status, 200, answer.body.toString());
  const { model_version, outputs } = json(answer) as { model_version: string; outputs: { data: number[] }[] };
  assert.equal(String(outputs[0]!.data[0]), model_version);
  return model_version;
}

// Stories: 10 sorted before 9; `01` and `model` counted as versions; a version was a number in JSON (version-policy, 59).
test('without a version the highest is meant, by number', async () => {
  for (const [model, versions] of Object.entries(SERVED)) {
    assert.equal(await versionThatRan(model), versions.at(-1), model);
    assert.equal((json(await get(server.url, `/v2/models/${model}`)) as { name: string }).name, model);
  }
});

test('the configuration of a model tells the policy by which its versions were chosen', async () => {
  for (const [model, config] of Object.entries(POLICIES)) {
    const { version_policy: policy } = json(await get(server.url, `/v2/models/${model}/config`));
    assert.deepEqual(policy, (config as { version_policy?: unknown }).version_policy ?? { latest: 1 }, model);
  }
});

test('the versions of a policy are served, and no other', async () => {
  for (const [model, versions] of Object.entries(SERVED)) {
    const metadata = json(await get(server.url, `/v2/models/${model}`));
    assert.deepEqual(metadata.versions, versions, `${model}: strings, in the order of their numbers`);
    for (const version of VERSIONS) {
      const path = `/v2/models/${model}/versions/${version}`;
      if (versions.includes(version)) {
        assert.equal(await versionThatRan(model, version), version, model);
        assert.equal((await get(server.url, `${path}/ready`)).status, 200);
        assert.equal((await get(server.url, path)).status, 200);
        continue;
      }
      for (const route of [path, `${path}/ready`, `${path}/config`]) {
        assertRefused(await get(server.url, route), 'MODEL_NOT_FOUND', new RegExp(`no version '${version}'`));
      }
      assertRefused(await infer(server.url, model, ZERO, version), 'MODEL_NOT_FOUND', /no version/);
    }
  }
});

test('the index lists each served version as a string', async () => {
  const [answer] = await sendTogether(server.url, [requestBytes('POST', '/v2/repository/index')]);
  const index = JSON.parse(answer!.body.toString()) as { name: string; version: string; state: string }[];
  const expected = Object.entries(SERVED).flatMap(([name, versions]) =>
    versions.map((version) => `${name}/${version}`),
  );
  assert.deepEqual(index.map(({ name, version }) => `${name}/${version}`).sort(), expected.sort());
  assert(index.every(({ version, state }) => typeof version === 'string' && state === 'READY'));
});

test('what is no version is malformed in a URL, also where a directory of the name is there', async () => {
  for (const name of [
    ...NO_VERSIONS,
    'x',
    '1.0',
    '１',
    '99999999999999999999',
    '1%2F',
    '%2e%2e',
    'latest',
    '0x1',
    '1_0',
  ]) {
    const path = `/v2/models/every/versions/${encodeURI(name).replaceAll('%25', '%')}`;
    for (const route of [path, `${path}/ready`]) {
      assertRefused(await get(server.url, route), 'BAD_URL', /is not a model version/);
    }
    const [answer] = await sendTogether(server.url, [requestBytes('POST', `${path}/infer`, [], ZERO.body)]);
    assertRefused(answer!, 'BAD_URL', /is not a model version/);
  }
  for (const version of ['2', '11', '9007199254740991']) {
    assertRefused(await get(server.url, `/v2/models/every/versions/${version}`), 'MODEL_NOT_FOUND', /no version/);
  }
});

test('directories that are no versions, and a version without a model, are ignored with a warning', async () => {
  for (const model of Object.keys(SERVED)) {
    for (const name of NO_VERSIONS) {
      const { msg, level } = await server.log((line) => line.model === model && line.entry === name);
      assert.match(String(msg), /is not a version/);
      assert.equal(level, 'warn');
    }
  }
  const { msg } = await server.log(({ model, entry }) => model === 'latest_1' && entry === '11');
  assert.match(String(msg), /is empty/);
  assert(!server.logs.some(({ entry }) => entry === '.tmp'), 'what begins with a dot is not spoken of');
});

test('requests for different versions of a model at the same time each get their own', async () => {
  const requests = Array.from({ length: 300 }, (_, n) => SERVED.every![n % 3]!);
  const ran = await Promise.all(requests.map((version) => versionThatRan('every', version)));
  assert.deepEqual(ran, requests);
});
