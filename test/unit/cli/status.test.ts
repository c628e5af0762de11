/** `status`: the server's own account as tables, whatever version it is. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, before, test } from 'node:test';
import { formatStatus } from '../../../src/cli/status.ts';
import { capture } from './capture.ts';

const HOW = `killed by the supervisor: its event loop did not turn for 10 s${' and more'.repeat(30)}`;

const status = {
  server: { version: '0.1.0', pid: 10, uptime_s: 3725.4, state: 'running', ready: false, reason: 'bad is loading' },
  addresses: { http: 'http://127.0.0.1:8000', metrics: 'http://127.0.0.1:8002' },
  processes: [
    {
      role: 'device',
      device: 'cpu',
      pid: 11,
      epoch: 1,
      state: 'ready',
      restarts: 2,
      last_exit: { code: null, signal: 'SIGKILL', how: HOW, at: '2025-01-01T00:00:00Z' },
      uptime_s: 59,
      rss_bytes: 104857600,
    },
    {
      role: 'ingress',
      device: null,
      state: 'backoff',
      reason: 'it died',
      pid: 12,
      epoch: 3,
      last_exit: { code: 70 },
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
      devices: [
        { device: 'cpu', instances: { running: 1, min: 1, max: 2 } },
        { device: 'cuda:0', instances: { running: 2, min: 1, max: 2 } },
      ],
      max_batch_size: 64,
      queue: { rows_queued: 3, rows_running: 4 },
      batches: 7,
      rows: 70,
      failures: 0,
    },
    { name: 'bad\x1b[2J', version: '2', state: 'LOADING', reason: 'loading', devices: [], queue: null },
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
      'batchport 0.1.0, running, not ready: bad is loading, pid 10, up 1h2m, http http://127.0.0.1:8000, metrics http://127.0.0.1:8002',
      '',
      'ROLE     DEVICE  PID  EPOCH  STATE      UP      RSS  RESTARTS  LAST EXIT',
      'device   cpu      11      1  ready     59s  100 MiB         2  SIGKILL',
      'ingress  -        12      3  backoff  1d1h    0 MiB         -  code 70',
      `  device cpu, last exit 2025-01-01T00:00:00Z: ${HOW}`,
      '  ingress is backoff: it died',
      '',
      'MODEL       VERSION  STATE    DEVICES     INSTANCES  MAX BATCH  QUEUED  RUNNING  BATCHES  ROWS  FAILED',
      'ocr               1  READY    cpu,cuda:0          3         64       3        4        7    70       0',
      'bad\\x1b[2J        2  LOADING  -                   -          -       -        -        -     -       -',
      '  bad\\x1b[2J 2 is LOADING: loading',
      '',
    ].join('\n'),
  );
});

test('the memory accounts are a table of their own, where there are any', () => {
  const model = { model: 'ocr', version: '1', weights_bytes: 2 ** 25, share_bytes: null, peak_bytes: 3 * 2 ** 20 };
  const devices = [{ device: 'cuda:0', total_bytes: 2 ** 34, free_bytes: 2 ** 30, models: [model] }];
  const text = formatStatus({ ...status, memory: { devices } }, { columns: undefined });
  assert.equal(
    text.slice(text.indexOf('MEMORY OF')),
    [
      'MEMORY OF      TOTAL      FREE  MODEL  VERSION  SHARE  WEIGHTS  LARGEST BATCH',
      'cuda:0     16384 MiB  1024 MiB  ocr          1      -   32 MiB          3 MiB',
      '',
    ].join('\n'),
  );
});

test('--json prints what the server sent', async () => {
  assert.equal((await capture(['status', '--url', url, '--json'])).out, `${body}\n`);
});

test('a status of which little is known is still printed', () => {
  const lines = formatStatus(
    { models: [{ devices: 'cpu', batches: 5 }, 'x'], processes: 3, server: null },
    { columns: undefined },
  );
  assert.match(lines, /^batchport -, -, pid -, up -\n/);
  assert.match(lines, /^-( +-){7} +5( +-){2}$/m);
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
