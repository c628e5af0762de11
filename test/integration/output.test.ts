/** Where the server's words go is no business of its requests: readers that have gone or do not read, and disks that are full, neither stop it nor hold it up. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, describe, type TestContext, test } from 'node:test';
import { get, infer, jsonBody } from '../support/exchange.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, startServer, type TestServer } from '../support/server.ts';
import { wrapped } from '../support/wrapped.ts';

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

const repository = makeRepository({ after }, ['rows']);

/** A program that starts the server from a shell after these words; `$0` is a path for a named pipe. */
function startedAfter(t: TestContext, words: string): string {
  return wrapped(t, ['sh', '-c', words, path.join(temporaryDirectory(t, 'output'), 'pipe')]);
}

async function assertServes(url: string): Promise<void> {
  assert.equal((await infer(url, 'rows', ROWS)).status, 200);
  assert.equal((await infer(url, 'rows', jsonBody('{}'))).status, 400);
}

async function assertStops(server: TestServer): Promise<void> {
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
}

describe('a log that nobody takes', () => {
  test('a full disk costs lines of the log only', async (t) => {
    const program = startedAfter(t, 'exec "$@" 2>/dev/full');
    const server = await startServer(t, { repository: repository.dir, args: ['--log-level', 'debug'], program });
    await assertServes(server.url);
    await assertStops(server);
  });

  test('a pipe that is full and never read holds up neither requests nor the end', async (t) => {
    const program = startedAfter(t, 'mkfifo "$0" && exec 3<>"$0" && head -c 65536 /dev/zero >&3 && exec "$@" 2>&3');
    const server = await startServer(t, { repository: repository.dir, args: ['--log-level', 'debug'], program });
    await assertServes(server.url);
    await assertStops(server);
  });

  test('a pipe whose reader has gone', async (t) => {
    const program = startedAfter(t, 'mkfifo "$0" && exec 3<>"$0" && exec 2>"$0" && exec 3<&- && exec "$@"');
    const server = await startServer(t, { repository: repository.dir, args: ['--log-level', 'debug'], program });
    await assertServes(server.url);
    await assertStops(server);
  });
});

describe('a ready line that nobody takes', () => {
  for (const [what, words] of [
    ['its reader has gone', 'mkfifo "$0" && exec 3<>"$0" && exec 4>"$0" && exec 3<&- && exec "$@" >&4'],
    ['a full disk', 'exec "$@" >/dev/full'],
  ] as const) {
    test(`${what}: the server says so in its log and serves`, async (t) => {
      const server = launchServer(t, { repository: repository.dir, program: startedAfter(t, words) });
      const { http } = await server.log(({ msg }) => msg === 'ready');
      await server.log(({ msg }) => msg === 'the ready line could not be written to stdout');
      await assertServes(String(http));
      assert.equal((await get(String(http), '/v2/health/ready')).status, 200);
      await assertStops(server);
    });
  }
});
