/** How a command finds the server that runs on this machine. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { type Endpoint, serverUrl } from '../../../src/cli/server-url.ts';
import { processStart } from '../../../src/system/process-start.ts';

let runtimeDir = '';
beforeEach(() => {
  runtimeDir = mkdtempSync(join(tmpdir(), 'batchport-url-'));
});
afterEach(() => rmSync(runtimeDir, { recursive: true }));

function find(given?: string, env: Record<string, string> = {}, endpoint: Endpoint = 'http'): string {
  return serverUrl(given, endpoint, {
    out: () => undefined,
    err: () => undefined,
    env: { BATCHPORT_RUNTIME_DIR: runtimeDir, ...env },
    cwd: '/',
    columns: undefined,
    errColumns: undefined,
    programPath: '/bin/serve',
  });
}

function running(name: string, pid: number, http: string, started = processStart(pid)): void {
  writeFileSync(join(runtimeDir, name), JSON.stringify({ pid, started, http, metrics: 'http://127.0.0.1:5' }));
}

// Above the kernel's largest process id.
const NO_PID = 2 ** 22 + 1;

test('an address that is given is taken, with or without its scheme', () => {
  running('server-1.json', process.pid, 'http://127.0.0.1:1234');
  assert.equal(find('http://host:1/'), 'http://host:1');
  assert.equal(find('host:1'), 'http://host:1');
  assert.equal(find('https://host/prefix'), 'https://host/prefix');
});

test('without one, the default address is taken', () => {
  assert.equal(find(), 'http://127.0.0.1:8000');
  assert.equal(find(undefined, {}, 'metrics'), 'http://127.0.0.1:8002');
});

test('a port of the environment is taken, on the loopback address where the server listens on all', () => {
  running('server-1.json', process.pid, 'http://127.0.0.1:1234');
  const url = (host: string) => find(undefined, { BATCHPORT_HTTP_PORT: '9', BATCHPORT_HOST: host });
  assert.deepEqual(['0.0.0.0', '::', '[::1]', '::1', 'name'].map(url), [
    'http://127.0.0.1:9',
    'http://[::1]:9',
    'http://[::1]:9',
    'http://[::1]:9',
    'http://name:9',
  ]);
});

test('a server that runs on another port is found in the runtime directory', () => {
  running('server-1.json', process.pid, 'http://0.0.0.0:1234');
  assert.equal(find(), 'http://127.0.0.1:1234');
  assert.equal(find(undefined, {}, 'metrics'), 'http://127.0.0.1:5');
});

test('of several servers the one at the default address is taken, else the user has to choose', () => {
  running('server-1.json', process.pid, 'http://127.0.0.1:1234');
  running('server-2.json', process.ppid, 'http://[::]:1235');
  assert.throws(() => find(), {
    exit: 'USAGE',
    message: /^2 servers run here/,
    hint: /:1234 \(pid \d+\), .*\[::1\]:1235/,
  });
  running('server-2.json', process.ppid, 'http://127.0.0.1:8000');
  assert.equal(find(), 'http://127.0.0.1:8000');
});

test('files of dead servers and files that are not of a server do not count', () => {
  running('server-1.json', NO_PID, 'http://127.0.0.1:1234');
  // Of a killed server whose number another process has now.
  running('server-6.json', process.pid, 'http://127.0.0.1:1234', processStart(process.pid)! - 1);
  running('other.json', process.pid, 'http://127.0.0.1:1234');
  writeFileSync(join(runtimeDir, 'server-2.json'), '{');
  writeFileSync(join(runtimeDir, 'server-3.json'), 'null');
  writeFileSync(join(runtimeDir, 'server-4.json'), `{"pid":${process.pid},"http":1}`);
  writeFileSync(join(runtimeDir, 'server-5.json'), ' '.repeat(5000));
  assert.equal(find(), 'http://127.0.0.1:8000');
});

test('a server on a Unix socket is told apart from one that cannot be found', () => {
  running('server-1.json', process.pid, 'unix:/run/batchport.sock');
  assert.throws(() => find(), { exit: 'USAGE', message: /unix:\/run\/batchport\.sock is a Unix socket/ });
});
