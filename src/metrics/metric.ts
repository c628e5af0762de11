/**
 * A metric: its name, type, help and labels, and how its samples are read from a scrape.
 *
 * Labels are those of the subject (what is measured) and at most one more, whose values are a fixed set. A metric can therefore have no more series than
 * there are subjects times that set, times the buckets of a histogram.
 */
import type { HistogramReading } from './counters.ts';
import type { Labels, Measured, Scrape } from './scrape.ts';

const PREFIX = 'batchport_';

export interface Metric {
  readonly name: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  /** Of the subject. */
  readonly labels: readonly string[];
  readonly by: FixedLabel<string> | undefined;
  readonly samples: (scrape: Scrape) => Sample[];
}

/** In the form in which prom-client prints it. The shared labels are the subject's own object, whose text prom-client keeps. */
export interface Sample {
  readonly metricName: string;
  readonly labels: Labels;
  readonly sharedLabels: Labels;
  readonly value: number;
}

/** What a metric is measured of, and the labels that all its items have. */
export interface Subject<Item extends Measured> {
  readonly labels: readonly string[];
  readonly items: (scrape: Scrape) => readonly Item[];
}

/** One more label, with all its values. */
export interface FixedLabel<Value extends string> {
  readonly label: string;
  readonly values: readonly Value[];
}

/** What all rows of the table say; `name` comes without the prefix. */
interface Row<Item extends Measured, Value extends string, Reading> {
  readonly of: Subject<Item>;
  readonly by?: FixedLabel<Value>;
  readonly name: string;
  readonly help: string;
  /** `value`: of the label `by`. */
  readonly read: (item: Item, value: Value) => Reading;
}

/** A number for each item, or for each item and value of `by`. */
export function metric<Item extends Measured, Value extends string>(
  row: Row<Item, Value, number> & { readonly type: 'counter' | 'gauge' },
): Metric {
  const { of, by, type, help, read } = row;
  const name = PREFIX + row.name;
  const parts = partsOf(by);
  const samples = (scrape: Scrape): Sample[] => {
    const out: Sample[] = [];
    for (const item of of.items(scrape)) {
      for (const { labels, value } of parts) {
        out.push({ metricName: name, labels, sharedLabels: item.labels, value: read(item, value) });
      }
    }
    return out;
  };
  return { name, type, help, labels: of.labels, by, samples };
}

export interface Buckets {
  /** Upper bounds in the unit of the metric. */
  readonly bounds: readonly number[];
  /** How many of the reading's units make one of the metric's. */
  readonly perUnit: number;
}

/** Cumulative buckets, sum and count for each item, or for each item and value of `by`. */
export function histogram<Item extends Measured, Value extends string>(
  row: Row<Item, Value, HistogramReading> & { readonly buckets: Buckets },
): Metric {
  const { of, by, help, read, buckets } = row;
  const name = PREFIX + row.name;
  const upTo = [...buckets.bounds.map(String), '+Inf'];
  const parts = partsOf(by).map((part) => ({ ...part, bucketLabels: upTo.map((le) => ({ ...part.labels, le })) }));
  const samples = (scrape: Scrape): Sample[] => {
    const out: Sample[] = [];
    for (const item of of.items(scrape)) {
      const sharedLabels = item.labels;
      for (const { labels, value, bucketLabels } of parts) {
        const reading = read(item, value);
        let count = 0;
        for (let n = 0; n < bucketLabels.length; n++) {
          count += reading.buckets[n]!;
          out.push({ metricName: `${name}_bucket`, labels: bucketLabels[n]!, sharedLabels, value: count });
        }
        out.push({ metricName: `${name}_sum`, labels, sharedLabels, value: reading.sum / buckets.perUnit });
        out.push({ metricName: `${name}_count`, labels, sharedLabels, value: count });
      }
    }
    return out;
  };
  return { name, type: 'histogram', help, labels: of.labels, by, samples };
}

/** The values of the further label; without one a single part that no label names. */
function partsOf<Value extends string>(by: FixedLabel<Value> | undefined): { labels: Labels; value: Value }[] {
  if (by === undefined) return [{ labels: {}, value: '' as Value }];
  return by.values.map((value) => ({ labels: { [by.label]: value }, value }));
}
