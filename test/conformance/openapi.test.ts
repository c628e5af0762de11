/**
 * The server's OpenAPI document before tools that others wrote: a validator takes it, and schemathesis, which makes requests of it, gets only answers that it describes
 * and no error of the server.
 *
 * `.ci/run` fetches both from PyPI into .cache/conformance; where they are not, these tests say so and are skipped.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { get } from '../support/exchange.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';

const BIN = path.join(PROJECT_DIR, '.cache/conformance/openapi/bin');
const PYTHON = path.join(BIN, 'python');
const SCHEMATHESIS = path.join(BIN, 'schemathesis');
const LIMIT_MS = 180_000;
const OUTPUT_MAX_BYTES = 16 * 2 ** 20;
/** A deadline of a microsecond passes, and has to. */
const CONFIG = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "504"]\n';
const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_schema_conformance',
];

const run = promisify(execFile);
const models = { simple: {}, bytes_column: {}, no_batch: {}, 'odd {name} é': { fixture: 'multitype' } };
const args = [
  '--system-shared-memory',
  '--model-control-mode',
  'explicit',
  '--load-model',
  '*',
  '--log-level',
  'error',
];
const server = launchServer({ after }, { repository: makeRepository({ after }, models).dir, args });
const skip = fs.existsSync(SCHEMATHESIS)
  ? false
  : `${path.relative(PROJECT_DIR, SCHEMATHESIS)} is not there: .ci/run fetches it where Python and PyPI are`;

before(async () => {
  await server.ready();
});

describe('OpenAPI', { skip }, () => {
  test('the document is valid', async (t) => {
    const file = path.join(temporaryDirectory(t, 'openapi'), 'openapi.json');
    fs.writeFileSync(file, (await get(server.url, '/v2/openapi.json')).body);
    const script =
      'import json, sys; from openapi_spec_validator import validate; validate(json.load(open(sys.argv[1])))';
    await run(PYTHON, ['-c', script, file], { timeout: LIMIT_MS });
  });

  test('schemathesis gets no error of the server, and no answer that the document does not describe', async (t) => {
    const config = path.join(temporaryDirectory(t, 'schemathesis'), 'schemathesis.toml');
    fs.writeFileSync(config, CONFIG);
    const asked = [
      'run',
      `${server.url}/v2/openapi.json`,
      '--checks',
      CHECKS.join(),
      '--phases',
      'examples,coverage,fuzzing',
    ];
    const bounds = ['-n', '8', '--seed', '7', '--request-timeout', '30', '--no-color'];
    const options = { timeout: LIMIT_MS, maxBuffer: OUTPUT_MAX_BYTES, cwd: path.dirname(config) };
    const { stdout } = await run(SCHEMATHESIS, ['--config-file', config, ...asked, ...bounds], options).catch(
      (error: { stdout?: string; message: string }) => assert.fail(error.stdout || error.message),
    );
    const generated = Number(/([\d,]+) generated/.exec(stdout)?.[1]?.replace(',', ''));
    assert(generated > 500, stdout);
    assert.match(stdout, /Tested: \d\d/);
  });
});
