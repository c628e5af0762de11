/** `bin/serve bench` as users run it, against a real server. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { parseModelConfig } from '../../src/config/model-config.ts';
import { eventually } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { PROJECT_DIR, startServer } from '../support/server.ts';

interface Ended {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

function serve(t: TestContext, ...args: string[]) {
  const child = spawn(process.execPath, [path.join(PROJECT_DIR, 'bin/serve'), ...args]);
  t.after(() => child.kill('SIGKILL'));
  const text = { out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (part: string) => {
    text.out += part;
  });
  child.stderr.setEncoding('utf8').on('data', (part: string) => {
    text.err += part;
  });
  const ended = new Promise<Ended>((resolve) => child.once('close', (code) => resolve({ code, ...text })));
  return { child, ended };
}

test('bench loads a server in closed and open loops, and can be interrupted', async (t) => {
  const { dir } = makeRepository(t, { mlp: {} });
  const server = await startServer(t, { repository: dir });
  const okCount = () => server.metric('batchport_requests_total', { model: 'mlp', outcome: 'ok' });

  const closed = await serve(t, 'bench', 'mlp', '--url', server.url, '-c', '1,4', '--requests', '50', '--json').ended;
  assert.deepEqual([closed.code, closed.err], [0, '']);
  const results = JSON.parse(closed.out);
  assert.equal(results.server.name, 'batchport');
  assert.deepEqual(
    results.runs.map(({ concurrency, ok }: { concurrency: number; ok: number }) => [concurrency, ok]),
    [
      [1, 50],
      [4, 50],
    ],
  );
  assert.equal(await okCount(), 101);

  const open = await serve(t, 'bench', 'mlp', '--url', server.url, '--rate', '500', '--requests', '50', '--rows', '2')
    .ended;
  assert.deepEqual([open.code, open.err], [0, '']);
  assert.match(open.out, /^mlp at .*\(batchport \d/);
  assert.equal(await okCount(), 152);

  const endless = serve(t, 'bench', 'mlp', '--url', server.url, '-c', '2', '--duration-s', '600', '--warm-up-s', '0');
  await eventually(async () => ((await okCount()) > 300 ? undefined : 'the third run has not begun'));
  endless.child.kill('SIGINT');
  const { code, out, err } = await endless.ended;
  assert.deepEqual([code, err], [0, 'interrupted: mlp was measured for less time than asked\n']);
  assert.match(out, /\nCLIENTS +OK\/S/);
  assert.match(out, / interrupted +[12] /);
});

test('tune advises settings that the server takes as a config.json', async (t) => {
  const { dir } = makeRepository(t, { mlp: { config: { max_batch_size: 4 } } });
  const server = await startServer(t, { repository: dir });
  const at = ['--url', server.url, '--metrics-url', server.metricsUrl, '--measure-s', '0.02'];
  const found = await serve(t, 'tune', 'mlp', ...at, '--rate', '2', '--slo-ms', '60000', '--json').ended;
  assert.deepEqual([found.code, found.err], [0, '']);
  const { config, costs, meets_objective: meets, predicted } = JSON.parse(found.out);
  assert.equal(meets, true);
  assert.deepEqual(Object.keys(costs.run_us_by_rows), ['1', '2', '4']);
  assert.deepEqual([predicted.refused, predicted.late], [0, 0]);
  const parsed = parseModelConfig(Buffer.from(JSON.stringify(config)));
  assert.equal(parsed.ok, true, JSON.stringify(parsed));
  // No machine answers within a nanosecond.
  const missed = await serve(t, 'tune', 'mlp', ...at, '--rate', '2', '--slo-ms', '0.000001').ended;
  assert.equal(missed.code, 10);
  assert.match(missed.out, /NO SETTINGS MEET IT/);
  assert.match(missed.out, /ROWS +MS A RUN +ROWS\/S/);
});
