/** The server helper itself: it must find what a server leaves behind, or the tests that rely on it prove nothing. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { isAlive, processEntry } from './process-table.ts';
import { temporaryDirectory } from './repository.ts';
import { launchServer, startServer } from './server.ts';

/** Writes a stand-in for bin/serve: it starts `sleep`, prints the ready line and does as told on SIGTERM, from the ready line on. */
function program(t: TestContext, onTerminate: string, before = ''): string {
  const file = path.join(temporaryDirectory(t, 'program'), 'serve.mjs');
  fs.writeFileSync(
    file,
    `import { spawn } from 'node:child_process';
     ${before}
     const child = spawn('sleep', ['60'], { env: {}, stdio: 'ignore', detached: true });
     console.error(JSON.stringify({ level: 30, msg: 'started', child: child.pid }));
     console.error('plain text');
     process.once('SIGTERM', () => { ${onTerminate} });
     console.log('batchport ready http=http://127.0.0.1:1234 metrics=http://127.0.0.1:1235');
     setInterval(() => {}, 1000);`,
  );
  return file;
}

const childOf = async (server: ReturnType<typeof launchServer>) => {
  const line = await server.log((entry) => entry.msg === 'started');
  const entry = processEntry(line.child as number);
  assert(entry !== undefined);
  return entry;
};

test('a server that stops cleanly gives its addresses, its log and its exit code', async (t) => {
  const server = await startServer(t, {
    program: program(t, "child.once('exit', () => process.exit(0)); child.kill()"),
  });
  assert.equal(server.url, 'http://127.0.0.1:1234');
  assert.equal(server.metricsUrl, 'http://127.0.0.1:1235');
  assert.deepEqual(await server.log((entry) => 'text' in entry), { text: 'plain text' });
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
});

test('a process left after the stop fails the test and is ended', async (t) => {
  const server = await startServer(t, { program: program(t, 'process.exit(0)') });
  const child = await childOf(server);
  await assert.rejects(server.stop(10_000, 100), /processes left 100 ms/);
  await assert.doesNotReject(server.ended());
  assert.equal(isAlive(child), false);
});

test('a server that exits before it is ready is reported with its last lines', async (t) => {
  const server = launchServer(t, { program: program(t, '', "console.error('port in use'); process.exit(7);") });
  await assert.rejects(server.ready(), /exited \{"code":7.*port in use/s);
});

test('a server that ignores SIGTERM is killed once the limit has passed', async (t) => {
  const server = await startServer(t, { program: program(t, '') });
  const child = await childOf(server);
  await assert.rejects(server.stop(50), /the end of the server: not within 50 ms/);
  assert.deepEqual(await server.ended(), { code: null, signal: 'SIGKILL' });
  assert.equal(isAlive(child), false);
});
