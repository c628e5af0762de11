/**
 * Files of the repository that are written from the tables in the code: the JSON Schemas in `config/`, and the tables in
 * README.md between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
 *
 * `npm run generate` writes them; a test compares them, so that they cannot drift.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ERRORS, type ErrorKind } from '../config/errors.ts';
import { exitCodesTable } from '../config/exit-codes.ts';
import { modelConfigJsonSchema } from '../config/model-config-schema.ts';
import { serverConfigJsonSchema } from '../config/server-config.ts';
import { settingsTable } from '../config/settings-table.ts';
import { TREATMENTS, TRITON_FIELDS } from '../config/triton-config.ts';
import { metricsTable } from '../metrics/prometheus.ts';

const README = 'README.md';

const readmeTables: Readonly<Record<string, () => string>> = {
  settings: settingsTable,
  errors: errorsTable,
  'exit-codes': exitCodesTable,
  metrics: metricsTable,
  triton: tritonTable,
};

/**
 * What the generated files should hold, by their paths below `root`. The README is among them where it exists.
 *
 * @throws Error when a marker of the README has no partner or no table
 */
export function generatedFiles(root: string): Map<string, string> {
  const files = new Map([
    ['config/server.schema.json', jsonFile(serverConfigJsonSchema())],
    ['config/model.schema.json', jsonFile(modelConfigJsonSchema())],
  ]);
  const readme = join(root, README);
  if (existsSync(readme)) files.set(README, withTables(readFileSync(readme, 'utf8')));
  return files;
}

/** The text with the tables of its markers refreshed; the rest is left as it is. */
export function withTables(markdown: string): string {
  const markers = [...markdown.matchAll(/<!-- ([a-z-]+):(begin|end) -->/g)].map(([, name, end]) => ({ name, end }));
  for (let i = 0; i < markers.length; i += 2) {
    const [begin, end] = [markers[i], markers[i + 1]];
    if (begin?.end !== 'begin' || end?.end !== 'end' || begin.name !== end.name) {
      throw new Error(`${README}: the marker of "${begin?.name}" has no partner`);
    }
  }
  return markdown.replace(
    /(<!-- ([a-z-]+):begin -->\n)[\s\S]*?(<!-- \2:end -->)/g,
    (_, begin: string, name, end: string) => {
      const table = readmeTables[String(name)];
      if (table === undefined) throw new Error(`${README}: there is no table "${name}"`);
      return `${begin}\n${table()}\n\n${end}`;
    },
  );
}

function jsonFile(value: unknown): string {
  return `${JSON.stringify(value, undefined, 2)}\n`;
}

/** Fields of a `config.pbtxt` by what becomes of them. */
function tritonTable(): string {
  const rows: string[] = [];
  const add = (fields: typeof TRITON_FIELDS, path: string): void => {
    for (const [name, { treatment, note, fields: inner }] of Object.entries(fields)) {
      const full = path === '' ? name : `${path}.${name}`;
      if (note !== '') rows.push(`| \`${full}\` | ${treatment} | ${note} |`);
      if (inner !== undefined) add(inner, full);
    }
  };
  add(TRITON_FIELDS, '');
  const order = (row: string) => TREATMENTS.findIndex((treatment) => row.includes(` | ${treatment} | `));
  return ['| Field | | |', '|---|---|---|', ...rows.toSorted((a, b) => order(a) - order(b))].join('\n');
}

function errorsTable(): string {
  const rows = Object.entries(ERRORS).map(([code, kind]) => {
    const { http, grpc, retryAfterS, meaning }: ErrorKind = kind;
    return `| \`${code}\` | ${http} | \`${grpc}\` | ${retryAfterS === undefined ? '' : `${retryAfterS} s`} | ${meaning} |`;
  });
  return ['| Code | HTTP | gRPC | Retry-After | Meaning |', '|---|---|---|---|---|', ...rows].join('\n');
}
