/**
 * A strict reader of Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats): what it does not accept, a scrape might
 * not accept either. Written apart from what prints the format, so that the two check each other.
 */

export interface Series {
  /** As printed: of a histogram with `_bucket`, `_sum` or `_count`. */
  readonly name: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly value: number;
}

export interface Family {
  readonly name: string;
  readonly type: string;
  readonly help: string;
  readonly series: readonly Series[];
}

const NAME = /[a-zA-Z_:][a-zA-Z0-9_:]*/y;
const LABEL_NAME = /[a-zA-Z_][a-zA-Z0-9_]*/y;
const NUMBER = /^(?:[+-]?Inf|NaN|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)$/;
const SUFFIXES: Readonly<Record<string, readonly string[]>> = {
  counter: [''],
  gauge: [''],
  histogram: ['_bucket', '_sum', '_count'],
};

/** Families by name. @throws Error that names the line when the text is not of the format. */
export function parseExposition(text: string): Map<string, Family> {
  if (!text.endsWith('\n')) throw new Error('the last line has no end');
  const families = new Map<string, Family & { series: Series[] }>();
  const seen = new Set<string>();
  let family: (Family & { series: Series[] }) | undefined;
  let help: { name: string; text: string } | undefined;
  for (const line of text.slice(0, -1).split('\n')) {
    try {
      if (line === '') continue;
      if (line.startsWith('# HELP ')) {
        const [name, rest] = cut(line.slice(7));
        help = { name, text: unescaped(rest, '\\n') };
      } else if (line.startsWith('# TYPE ')) {
        const [name, type] = cut(line.slice(7));
        if (SUFFIXES[type] === undefined) throw new Error(`unknown type ${type}`);
        if (help?.name !== name) throw new Error('no help before it');
        if (families.has(name)) throw new Error('a second family of this name');
        family = { name, type, help: help.text, series: [] };
        families.set(name, family);
      } else if (line.startsWith('#')) {
        throw new Error('a comment of another kind');
      } else {
        const series = parseSeries(line);
        const { name, labels } = series;
        if (family === undefined || !SUFFIXES[family.type]!.some((suffix) => family!.name + suffix === name)) {
          throw new Error('not of the family above it');
        }
        const key = JSON.stringify([name, ...[...labels].sort()]);
        if (seen.has(key)) throw new Error('a second series of this name and labels');
        seen.add(key);
        family.series.push(series);
      }
    } catch (error) {
      throw new Error(`${(error as Error).message}: ${line}`);
    }
  }
  return families;
}

function parseSeries(line: string): Series {
  const name = take(NAME, line, 0);
  const labels = new Map<string, string>();
  let at = name.length;
  if (line[at] === '{') {
    at++;
    while (line[at] !== '}') {
      const label = take(LABEL_NAME, line, at);
      at += label.length;
      if (line.slice(at, at + 2) !== '="') throw new Error('no value of a label');
      at += 2;
      const end = closingQuote(line, at);
      if (labels.has(label)) throw new Error('the same label twice');
      labels.set(label, unescaped(line.slice(at, end), '\\n"'));
      at = end + 1;
      if (line[at] === ',') at++;
      else if (line[at] !== '}') throw new Error('no end of the labels');
    }
    at++;
  }
  if (line[at] !== ' ') throw new Error('no space before the value');
  const text = line.slice(at + 1);
  if (!NUMBER.test(text)) throw new Error('not a number');
  return { name, labels, value: Number(text.replace('Inf', 'Infinity')) };
}

function take(pattern: RegExp, text: string, at: number): string {
  pattern.lastIndex = at;
  const found = pattern.exec(text)?.[0];
  if (found === undefined) throw new Error('no name');
  return found;
}

function closingQuote(line: string, from: number): number {
  let at = from;
  while (at < line.length && line[at] !== '"') at += line[at] === '\\' ? 2 : 1;
  if (at >= line.length) throw new Error('no end of a label');
  return at;
}

function cut(text: string): [string, string] {
  const name = take(NAME, text, 0);
  if (text[name.length] !== ' ') throw new Error('no space after the name');
  return [name, text.slice(name.length + 1)];
}

/** `allowed`: what may stand behind a backslash, with n for a line feed. */
function unescaped(text: string, allowed: string): string {
  return text.replace(/\\(.?)/gs, (_, escaped: string) => {
    if (escaped === '' || !allowed.includes(escaped)) throw new Error(`\\${escaped} is no escape`);
    return escaped === 'n' ? '\n' : escaped;
  });
}
