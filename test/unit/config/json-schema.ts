/**
 * A checker for the part of JSON Schema (draft 2020-12) that the published schemas use.
 *
 * It shares no code with the library that writes those schemas, and throws on a keyword it does not know, so a schema cannot
 * pass here by being misunderstood.
 */
import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';

type Schema = Readonly<Record<string, unknown>>;

const ANNOTATIONS = new Set(['$schema', 'title', 'description', 'default', 'examples']);

/** Whether `value`, as JSON.parse gives it, is valid under `schema`. */
export function acceptsJson(schema: Schema, value: unknown): boolean {
  return Object.entries(schema).every(([keyword, argument]) => {
    if (ANNOTATIONS.has(keyword)) {
      return true;
    }
    const check = KEYWORDS.get(keyword);
    assert.ok(check, `keyword ${keyword} of JSON Schema is not known to this checker`);
    return check(value, argument, schema);
  });
}

type Check = (value: unknown, argument: unknown, schema: Schema) => boolean;

const KEYWORDS: ReadonlyMap<string, Check> = new Map<string, Check>([
  ['type', (value, type) => hasType(value, type)],
  ['const', (value, wanted) => isDeepStrictEqual(value, wanted)],
  ['enum', (value, wanted) => asArray(wanted).some((one) => isDeepStrictEqual(value, one))],
  ['anyOf', (value, branches) => asArray(branches).some((branch) => acceptsJson(asObject(branch), value))],
  ['minimum', (value, limit) => typeof value !== 'number' || value >= Number(limit)],
  ['maximum', (value, limit) => typeof value !== 'number' || value <= Number(limit)],
  ['minLength', (value, limit) => typeof value !== 'string' || [...value].length >= Number(limit)],
  ['oneOf', (value, branches) => asArray(branches).filter((one) => acceptsJson(asObject(one), value)).length === 1],
  ['maxLength', (value, limit) => typeof value !== 'string' || [...value].length <= Number(limit)],
  ['pattern', (value, pattern) => typeof value !== 'string' || new RegExp(String(pattern), 'u').test(value)],
  ['minItems', (value, limit) => !Array.isArray(value) || value.length >= Number(limit)],
  ['maxItems', (value, limit) => !Array.isArray(value) || value.length <= Number(limit)],
  ['items', (value, schema) => !Array.isArray(value) || value.every((one) => acceptsJson(asObject(schema), one))],
  [
    'uniqueItems',
    (value) => !Array.isArray(value) || new Set(value.map((one) => JSON.stringify(one))).size === value.length,
  ],
  ['maxProperties', (value, limit) => !isObject(value) || Object.keys(value).length <= Number(limit)],
  [
    'required',
    (value, names) => !isObject(value) || asArray(names).every((name) => Object.hasOwn(value, String(name))),
  ],
  [
    'propertyNames',
    (value, schema) => !isObject(value) || Object.keys(value).every((name) => acceptsJson(asObject(schema), name)),
  ],
  [
    'properties',
    (value, properties) =>
      !isObject(value) ||
      membersOf(value, asObject(properties), true).every(([key, one]) =>
        acceptsJson(asObject(asObject(properties)[key]), one),
      ),
  ],
  [
    'additionalProperties',
    (value, argument, schema) =>
      !isObject(value) ||
      membersOf(value, asObject(schema.properties ?? {}), false).every(
        ([, one]) => argument !== false && acceptsJson(asObject(argument), one),
      ),
  ],
]);

function membersOf(value: Schema, properties: Schema, listed: boolean): [string, unknown][] {
  return Object.entries(value).filter(([key]) => Object.hasOwn(properties, key) === listed);
}

function hasType(value: unknown, type: unknown): boolean {
  switch (type) {
    case 'object':
      return isObject(value);
    case 'array':
      return Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    case 'string':
    case 'number':
    case 'boolean':
      return typeof value === type;
    default:
      throw new Error(`type ${type} of JSON Schema is not known to this checker`);
  }
}

function isObject(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function asObject(value: unknown): Schema {
  assert.ok(isObject(value), 'an object was expected here in the schema');
  return value;
}

function asArray(value: unknown): readonly unknown[] {
  assert.ok(Array.isArray(value), 'a list was expected here in the schema');
  return value;
}
