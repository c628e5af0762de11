/** The measurement against a server whose counters are made up. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type Measured, MeasurementFault, measureCosts } from '../../../src/tune/measure.ts';
import { readRunCounters } from '../../../src/tune/run-counters.ts';
import { always, answerBytes, loadServer } from '../load/load-server.ts';

/** A model whose runs take 100 ms + 50 ms a row by its counters, so that few requests are sent for each size. */
async function model(t: TestContext, maxBatchSize: number, instances: number, foreignRows = 0): Promise<Measured> {
  const counted = { batches: 0, rows: 0, busyS: 0 };
  let rowsNow = 1;
  const server = await loadServer(t, (socket) => {
    counted.batches++;
    counted.rows += rowsNow + foreignRows;
    counted.busyS += 0.1 + 0.05 * rowsNow;
    socket.write(answerBytes(200));
  });
  return {
    target: (rows) => {
      rowsNow = rows;
      return server.target;
    },
    counters: async () => ({ ...counted, instances, maxBatchSize }),
    sizeMs: 1000,
    runMsMax: 10_000,
    rowsPerRequest: 1,
    progress: () => {},
  };
}

test('the curve is that of the counters, up to the largest batch', async (t) => {
  const costs = await measureCosts(await model(t, 8, 1));
  assert.deepEqual([...costs.curveUs].slice(0, 5).map(Math.round), [150_000, 200_000, 300_000, 500_000, 900_000]);
  assert.deepEqual([costs.rowsMax, costs.slowdown, costs.spreads.length], [8, [1], 4]);
  for (const spread of costs.spreads) {
    assert(Math.abs(spread.reduce((sum, value) => sum + value, 0) / spread.length - 1) < 1e-9);
  }
});

test('batches that could not meet the objective are not measured, nor those of a model without', async (t) => {
  assert.equal((await measureCosts({ ...(await model(t, 64, 1)), runMsMax: 180 })).rowsMax, 2);
  assert.equal((await measureCosts(await model(t, 0, 1))).rowsMax, 1);
});

test('several instances are measured at work together', async (t) => {
  // They run as long as one, by these counters.
  const { slowdown } = await measureCosts(await model(t, 1, 3));
  assert.deepEqual(
    slowdown.map((factor) => Number(factor.toFixed(6))),
    [1, 1, 1],
  );
});

test('a measurement that would mislead is given up', async (t) => {
  const fault = (message: RegExp) => (error: unknown) =>
    error instanceof MeasurementFault && message.test(error.message);
  await assert.rejects(measureCosts(await model(t, 8, 1, 1)), fault(/others use the model meanwhile/));
  const refusing = await loadServer(t, always(429, 'full'));
  const measured = await model(t, 8, 1);
  await assert.rejects(
    measureCosts({ ...measured, target: () => refusing.target }),
    fault(/5 requests of 1 rows got 429 full/),
  );
  const elsewhere = await loadServer(t, always(200));
  await assert.rejects(measureCosts({ ...measured, target: () => elsewhere.target }), fault(/counted no batch/));
});

test('counters are read from the text of the metrics, by model and version, over all devices', () => {
  const text = `# TYPE batchport_batches_total counter
batchport_batches_total{model="m",version="1",device="cpu"} 3
batchport_batches_total{model="m",version="1",device="cuda:0"} 4
batchport_batches_total{model="m",version="2",device="cpu"} 100
batchport_batches_total{model="mm",version="1",device="cpu"} 100
batchport_batch_rows_executed_total{model="m",version="1",device="cpu"} 12
batchport_instance_busy_seconds_total{model="m",version="1",device="cpu"} 0.5
batchport_instances{state="idle",model="m",version="1",device="cpu"} 1
batchport_instances{state="running",model="m",version="1",device="cpu"} 2
batchport_model_max_batch_rows{model="m",version="1"} 64
`;
  assert.deepEqual(readRunCounters(text, 'm', '1'), {
    batches: 7,
    rows: 12,
    busyS: 0.5,
    instances: 3,
    maxBatchSize: 64,
  });
  assert.equal(readRunCounters(text, 'm', '3'), undefined);
  assert.equal(readRunCounters('model="\\"', '"', '1'), undefined);
});
