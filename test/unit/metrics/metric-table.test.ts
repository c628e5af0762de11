/** The table of metrics: what each of them tells of a snapshot, in which unit. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OUTCOMES, STAGES } from '../../../src/metrics/counters.ts';
import { allSeries, scrape, values } from './scrapes.ts';
import { FakeModel, fakeProcess, ofModels, ofProcesses } from './snapshots.ts';

test('requests are summed over the ingress slots and divided by outcome', async () => {
  const model = new FakeModel('a');
  OUTCOMES.forEach((_, n) => {
    for (let count = 0; count <= n; count++) model.ingress[count % 2]!.outcome(n);
  });
  model.ingress[0]!.received(3, 100);
  model.ingress[1]!.received(4, 200);
  model.ingress[1]!.sent(50);
  model.ingress[0]!.inFlight(5);
  model.ingress[1]!.inFlight(6);
  const exposition = await scrape(ofModels(model.snapshot()));
  OUTCOMES.forEach((outcome, n) => {
    assert.deepEqual(values(exposition, 'requests_total', { model: 'a', version: '1', outcome }), [n + 1]);
  });
  assert.deepEqual(values(exposition, 'request_rows_total'), [7]);
  assert.deepEqual(values(exposition, 'request_bytes_total'), [300]);
  assert.deepEqual(values(exposition, 'response_bytes_total'), [50]);
  assert.deepEqual(values(exposition, 'requests_in_flight'), [11]);
});

test('latencies come in seconds, by stage, and the total stands alone', async () => {
  const model = new FakeModel('a');
  STAGES.forEach((_, n) => {
    model.ingress[n % 2]!.stage(n, 1000 * (n + 1));
  });
  const exposition = await scrape(ofModels(model.snapshot()));
  for (const [n, stage] of STAGES.entries()) {
    if (stage === 'total') continue;
    assert.deepEqual(values(exposition, 'request_stage_seconds_sum', { stage }), [0.001 * (n + 1)]);
  }
  assert.deepEqual(values(exposition, 'request_stage_seconds_sum', { stage: 'total' }), []);
  assert.deepEqual(values(exposition, 'request_seconds_sum'), [0.005]);
  assert.deepEqual(values(exposition, 'request_seconds_bucket', { le: '0.0025' }), [0]);
  assert.deepEqual(values(exposition, 'request_seconds_bucket', { le: '0.005' }), [1]);
});

test('the instances of a device are summed, those of another device and model are not', async () => {
  const [a, b] = [new FakeModel('a', ['cpu', 'cuda:0']), new FakeModel('b')];
  a.instances[0]!.batch(3, 500_000, 0);
  a.instances[1]!.batch(4, 250_000, 0);
  a.instances[1]!.failure();
  a.instances[1]!.split();
  a.instances[1]!.split();
  a.instances[0]!.outOfMemory();
  a.instances[0]!.skipped();
  a.instances[3]!.batch(100, 1_000_000, 0);
  const exposition = await scrape(ofModels(a.snapshot(), b.snapshot()));
  const cpu = { model: 'a', version: '1', device: 'cpu' };
  assert.deepEqual(values(exposition, 'batches_total', cpu), [2]);
  assert.deepEqual(values(exposition, 'batch_rows_executed_total', cpu), [7]);
  assert.deepEqual(values(exposition, 'instance_busy_seconds_total', cpu), [0.75]);
  assert.deepEqual(values(exposition, 'batch_failures_total', cpu), [1]);
  assert.deepEqual(values(exposition, 'batch_splits_total', cpu), [2]);
  assert.deepEqual(values(exposition, 'batch_out_of_memory_total', cpu), [1]);
  assert.deepEqual(values(exposition, 'batch_skipped_total', cpu), [1]);
  assert.deepEqual(values(exposition, 'batch_rows_bucket', { ...cpu, le: '2' }), [0]);
  assert.deepEqual(values(exposition, 'batch_rows_bucket', { ...cpu, le: '4' }), [2]);
  assert.deepEqual(values(exposition, 'batch_rows_sum', cpu), [7]);
  assert.deepEqual(values(exposition, 'batch_rows_sum', { device: 'cuda:0' }), [100]);
  assert.deepEqual(values(exposition, 'batches_total', { model: 'b' }), [0]);
});

test('instances with a thread are idle or running, and the oldest run tells its age', async () => {
  const model = new FakeModel('a');
  const [first, second] = model.snapshot().instances;
  const read = async (...threads: { running: boolean; executingForS: number }[]) => {
    const instances = threads.map((thread, n) => ({ ...[first!, second!][n]!, ...thread }));
    const exposition = await scrape(ofModels(model.snapshot({ instances })));
    return [
      ...values(exposition, 'instances', { state: 'idle' }),
      ...values(exposition, 'instances', { state: 'running' }),
      ...values(exposition, 'instance_executing_seconds'),
    ];
  };
  assert.deepEqual(await read({ running: false, executingForS: 0 }, { running: false, executingForS: 0 }), [0, 0, 0]);
  assert.deepEqual(await read({ running: true, executingForS: 0 }, { running: true, executingForS: 2 }), [1, 1, 2]);
  assert.deepEqual(await read({ running: true, executingForS: 7 }, { running: true, executingForS: 2 }), [0, 2, 7]);
});

test('the queue shows rows, slabs by state, memory, and what deaths did to its rows', async () => {
  const exposition = await scrape(ofModels(new FakeModel('a').snapshot({ requeuedRows: 12, lostRows: 3 })));
  assert.deepEqual(values(exposition, 'queue_rows', { state: 'queued' }), [8]);
  assert.deepEqual(values(exposition, 'queue_rows', { state: 'running' }), [9]);
  ['free', 'filling', 'open', 'sealed', 'running', 'done', 'freeing'].forEach((state, n) => {
    assert.deepEqual(values(exposition, 'queue_slabs', { state }), [n + 1]);
  });
  assert.deepEqual(values(exposition, 'queue_committed_bytes'), [1 << 20]);
  assert.deepEqual(values(exposition, 'queue_used_bytes'), [1 << 19]);
  assert.deepEqual(values(exposition, 'rows_requeued_total'), [12]);
  assert.deepEqual(values(exposition, 'rows_lost_total'), [3]);
});

test('a version is in exactly one state and ready only in READY', async () => {
  for (const state of ['UNAVAILABLE', 'LOADING', 'READY', 'UNLOADING'] as const) {
    const exposition = await scrape(ofModels(new FakeModel('a').snapshot({ state })));
    assert.deepEqual(values(exposition, 'model_state', { state }), [1]);
    assert.deepEqual(values(exposition, 'model_state').sort(), [0, 0, 0, 1]);
    assert.deepEqual(values(exposition, 'model_ready'), [state === 'READY' ? 1 : 0]);
  }
});

test('a version without a segment has all its series of requests and queue, at zero', async () => {
  const empty = { ingress: [], instances: [], queue: undefined, state: 'LOADING', maxBatchSize: 0 } as const;
  const before = await scrape(ofModels(new FakeModel('a').snapshot(empty)));
  const after = await scrape(ofModels(new FakeModel('a').snapshot()));
  for (const [name, { series }] of after) {
    const ofDevice = series.some(({ labels }) => labels.has('device'));
    assert.equal(before.get(name)!.series.length, ofDevice ? 0 : series.length, name);
  }
  const counted = allSeries(before).filter(({ labels, value }) => labels.has('model') && value !== 0);
  assert.deepEqual(
    counted.map(({ name, labels }) => [name, labels.get('state')]),
    [['batchport_model_state', 'LOADING']],
  );
});

test('restarts and exits are summed by role and device, the rest is told of each process', async () => {
  const exposition = await scrape(
    ofProcesses(
      fakeProcess({ role: 'supervisor', state: 'running', rssBytes: 1, uptimeS: 9 }),
      fakeProcess({ slot: 0, restarts: 1, exits: { 'exit code 1': 1 }, rssBytes: 2 }),
      fakeProcess({ slot: 1, restarts: 2, exits: { 'exit code 1': 1, 'signal SIGKILL': 3 }, state: 'backoff' }),
      fakeProcess({ role: 'device', device: 'cpu', restarts: 4, state: 'starting' }),
      fakeProcess({ role: 'device', device: 'cpu#2', restarts: 5, exits: { 'signal SIGSEGV': 1 }, state: 'draining' }),
    ),
  );
  const ingress = { role: 'ingress', device: '' };
  assert.deepEqual(values(exposition, 'process_restarts_total', ingress), [3]);
  assert.deepEqual(values(exposition, 'process_restarts_total', { role: 'device', device: 'cpu' }), [4]);
  assert.deepEqual(values(exposition, 'process_restarts_total', { role: 'supervisor' }), [0]);
  assert.deepEqual(values(exposition, 'process_exits_total', { ...ingress, reason: 'exit code 1' }), [2]);
  assert.deepEqual(values(exposition, 'process_exits_total', { ...ingress, reason: 'signal SIGKILL' }), [3]);
  assert.deepEqual(values(exposition, 'process_exits_total', { device: 'cpu#2', reason: 'signal SIGSEGV' }), [1]);
  assert.deepEqual(values(exposition, 'process_up'), [1, 1, 0, 0, 1]);
  assert.deepEqual(values(exposition, 'process_resident_bytes', { role: 'ingress', slot: '0' }), [2]);
  assert.deepEqual(values(exposition, 'process_uptime_seconds', { role: 'supervisor' }), [9]);
});

test('the server tells its readiness, its versions, and how busy the supervisor has been', async () => {
  const exposition = await scrape({ ...ofModels(), ready: false });
  assert.deepEqual(values(exposition, 'ready'), [0]);
  assert.deepEqual(values(await scrape(ofModels()), 'ready'), [1]);
  assert.deepEqual(values(exposition, 'build_info', { version: '1.2.3', node: process.versions.node }), [1]);
  const [busy] = values(exposition, 'supervisor_busy_seconds_total');
  assert.ok(busy !== undefined && busy >= 0 && busy <= process.uptime());
});

test('figures of the memory accounts are told where they are known, and left out where nobody tells them', async () => {
  const snapshot = ofModels(new FakeModel('a').snapshot());
  const exposition = await scrape(snapshot);
  assert.deepEqual(values(exposition, 'device_memory_total_bytes'), [1000]);
  assert.deepEqual(values(exposition, 'device_memory_free_bytes'), [200]);
  assert.deepEqual(values(exposition, 'model_memory_share_bytes'), [60]);
  const [memory] = snapshot.memory;
  const nothing = { totalBytes: undefined, freeBytes: undefined, usedBytes: undefined };
  const models = memory!.models.map((model) => ({ ...model, shareBytes: undefined, peakBytes: undefined }));
  const without = await scrape({ ...snapshot, memory: [{ ...memory!, ...nothing, models }] });
  for (const name of ['device_memory_total_bytes', 'device_memory_free_bytes', 'device_memory_used_bytes']) {
    assert.deepEqual(values(without, name), [], name);
  }
  assert.deepEqual(values(without, 'model_memory_share_bytes'), []);
  assert.deepEqual(values(without, 'model_memory_weights_bytes'), [30]);
});

test('what an arena holds is told once, by the instances that run in it', async () => {
  const model = new FakeModel('a', ['cpu', 'cuda:0']);
  model.instances.forEach((instance, slot) => {
    instance.arena(100 + slot);
    instance.gaveBack();
  });
  const exposition = await scrape(ofModels(model.snapshot()));
  assert.deepEqual(values(exposition, 'model_memory_held_bytes'), [101, 103]);
  assert.deepEqual(values(exposition, 'model_memory_given_back_total'), [2, 2]);
  const idle = await scrape(ofModels(model.snapshot({}, { running: false })));
  assert.deepEqual(values(idle, 'model_memory_held_bytes'), [0, 0]);
});
