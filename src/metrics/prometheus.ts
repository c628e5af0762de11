/**
 * The metrics as Prometheus reads them: prom-client's registry over the metric table, and the table for the README.
 *
 * Nothing is counted here: at each scrape one snapshot is read, so all metrics of a scrape tell of the same moment.
 */
import { performance } from 'node:perf_hooks';
import { type Metric as PromMetric, Registry } from 'prom-client';
import type { Metric, Sample } from './metric.ts';
import { METRICS } from './metric-table.ts';
import { type Scrape, sumUp } from './scrape.ts';
import type { MetricsSnapshot } from './snapshot.ts';

/**
 * A registry that reads everything from `read`, once a scrape. A scrape fails (its promise is rejected) with what `read` throws, and with an error when a
 * value is not a finite number, which is a bug.
 */
export function createRegistry(read: () => MetricsSnapshot): Registry {
  const registry = new Registry();
  let current: Scrape | undefined;
  // The registry asks all its metrics in one turn of the event loop.
  const scrape = (): Scrape => {
    if (current === undefined) {
      current = sumUp(read(), {
        nodeVersion: process.versions.node,
        loopBusyS: performance.eventLoopUtilization().active / 1000,
      });
      queueMicrotask(() => {
        current = undefined;
      });
    }
    return current;
  };
  for (const metric of METRICS) {
    // prom-client's types only know its own classes; its registry needs no more than a name and these two methods.
    registry.registerMetric(new ReadMetric(metric, scrape) as unknown as PromMetric);
  }
  return registry;
}

class ReadMetric {
  readonly name: string;
  readonly #metric: Metric;
  readonly #scrape: () => Scrape;

  constructor(metric: Metric, scrape: () => Scrape) {
    this.name = metric.name;
    this.#metric = metric;
    this.#scrape = scrape;
  }

  /** For the text format. */
  getForPromString() {
    const { name, help, type, samples } = this.#metric;
    const values = samples(this.#scrape());
    for (const sample of values) requireFinite(sample);
    return { name, help, type, aggregator: 'sum', values };
  }

  /** For the registry's JSON form, which has all labels in one object. */
  get() {
    const metric = this.getForPromString();
    const values = metric.values.map(({ metricName, labels, sharedLabels, value }) => {
      return { metricName, labels: { ...sharedLabels, ...labels }, value };
    });
    return { ...metric, values };
  }
}

function requireFinite({ metricName, sharedLabels, value }: Sample): void {
  if (!Number.isFinite(value)) {
    throw new Error(`This is a bug: ${metricName} of ${JSON.stringify(sharedLabels)} is ${value}`);
  }
}

/** Markdown table of all metrics. */
export function metricsTable(): string {
  const rows = METRICS.map(({ name, type, help, labels, by }) => {
    const names = labels.map(code);
    if (by !== undefined) names.push(`${code(by.label)} (${by.values.join(', ')})`);
    return `| ${code(name)} | ${type} | ${names.join(', ')} | ${help} |`;
  });
  return ['| Metric | Type | Labels | Meaning |', '|---|---|---|---|', ...rows].join('\n');
}

function code(text: string): string {
  return `\`${text}\``;
}
