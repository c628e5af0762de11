/** The counters of a model's runs, out of the text of a server's `/metrics`. */

/** Sums over the devices and instances of a model. */
export interface RunCounters {
  readonly batches: number;
  readonly rows: number;
  readonly busyS: number;
  /** Instances that take batches. */
  readonly instances: number;
  /** Most rows in a batch; 0 where none are batched. */
  readonly maxBatchSize: number;
}

const LINE =
  /^batchport_(batches_total|batch_rows_executed_total|instance_busy_seconds_total|instances|model_max_batch_rows)\{(.*)\} (\S+)$/gm;

/** @returns undefined where the text does not tell of that version of the model */
export function readRunCounters(text: string, model: string, version: string): RunCounters | undefined {
  const sums = {
    batches_total: 0,
    batch_rows_executed_total: 0,
    instance_busy_seconds_total: 0,
    instances: 0,
    model_max_batch_rows: 0,
  };
  let found = false;
  for (const [, name, labels, value] of text.matchAll(LINE)) {
    if (!labels!.includes(`model=${labelText(model)}`)) continue;
    if (!labels!.includes(`version=${labelText(version)}`)) continue;
    found = true;
    sums[name as keyof typeof sums] += Number(value);
  }
  if (!found) return undefined;
  return {
    batches: sums.batches_total,
    rows: sums.batch_rows_executed_total,
    busyS: sums.instance_busy_seconds_total,
    instances: sums.instances,
    maxBatchSize: sums.model_max_batch_rows,
  };
}

function labelText(value: string): string {
  return `"${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`;
}
