/** `status`: the server's own account as tables, whatever version it is. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, before, test } from 'node:test';
import { formatStatus } from '../../../src/cli/status.ts';
import { capture } from './capture.ts';

const status = {
  server: { version: '0.1.0', pid: 10, uptime_s: 3725.4, state: 'ready' },
  addresses: { http: 'http://127.0.0.1:8000', metrics: 'http://127.0.0.1:8002' },
  processes: [
    {
      role: 'device',
      device: 'cpu',
      pid: 11,
      epoch: 1,
      state: 'ready',
      restarts: 2,
      last_exit: 'SIGKILL',
      uptime_s: 59,
      rss_bytes: 104857600,
    },
    {
      role: 'ingress',
      device: null,
      pid: 12,
      epoch: 3,
      state: 'ready',
      restarts: 0,
      last_exit: null,
      uptime_s: 90061,
      rss_bytes: 1,
    },
  ],
  models: [
    {
      name: 'ocr',
      version: '1',
      state: 'READY',
      reason: '',
      devices: ['cpu'],
      instances: 1,
      batching: 'proven',
      max_batch_size: 64,
      queue: { rows: 3 },
      executions: 7,
    },
    { name: 'bad\x1b[2J', version: '2', state: 'UNAVAILABLE', reason: 'cannot be loaded' },
  ],
};

let body = JSON.stringify(status);
let code = 200;
const server = createServer((request, response) => {
  response.writeHead(request.url === '/status' ? code : 404).end(body);
});
let url = '';

before(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

after(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

test('processes and models are printed as tables', async () => {
  const { exitCode, out } = await capture(['status', '--url', url]);
  assert.equal(exitCode, 0);
  assert.equal(
    out,
    [
      'batchport 0.1.0, ready, pid 10, up 1h2m, http http://127.0.0.1:8000, metrics http://127.0.0.1:8002',
      '',
      'ROLE     DEVICE  PID  EPOCH  STATE    UP      RSS  RESTARTS  LAST EXIT',
      'device   cpu      11      1  ready   59s  100 MiB         2  SIGKILL',
      'ingress  -        12      3  ready  1d1h    0 MiB         0  -',
      '',
      'MODEL       VERSION  STATE        DEVICES  INSTANCES  MAX BATCH  QUEUED  RUNS  REASON',
      'ocr               1  READY        cpu              1         64       3     7  -',
      'bad\\x1b[2J        2  UNAVAILABLE  -                -          -       -     -  cannot be loaded',
      '',
    ].join('\n'),
  );
});

test('--json prints what the server sent', async () => {
  assert.equal((await capture(['status', '--url', url, '--json'])).out, `${body}\n`);
});

test('a status of which little is known is still printed', () => {
  const lines = formatStatus(
    { models: [{ instances: [{}, {}] }, 'x'], processes: 3, server: null },
    { columns: undefined },
  );
  assert.match(lines, /^batchport -, -, pid -, up -\n/);
  assert.match(lines, /^- +- +- +- +2 /m);
  assert.match(formatStatus({}, { columns: undefined }), /no models\n$/);
});

test('an answer that is no status, and no answer at all, are told apart', async () => {
  body = '<html>';
  assert.match((await capture(['status', '--url', url])).err, /not the JSON of a batchport server/);
  code = 404;
  const wrongPort = await capture(['status', '--url', url]);
  assert.equal(wrongPort.exitCode, 7);
  assert.match(wrongPort.err, /\/status answered 404 Not Found\n {7}status reads the metrics port/);
  const nobody = await capture(['status', '--url', 'http://127.0.0.1:9']);
  assert.equal(nobody.exitCode, 7);
  assert.match(nobody.err, /no answer from http:\/\/127\.0\.0\.1:9: .*\n {7}is the server running\?/);
});

test('an answer without end is given up', async () => {
  code = 200;
  body = 'x'.repeat(16 * 2 ** 20 + 1);
  assert.match((await capture(['status', '--url', url])).err, /passes 16777216 bytes/);
});
