/**
 * Requests for fuzzing what reads them: valid ones in every form, texts that mean something in JSON or in the protocol, and changes that keep most of a request
 * as it was, so that what is wrong is found late.
 */
import type { ModelInterface } from '../../src/protocol/request-decoder.ts';
import { encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { DATATYPES, type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import { elementCount } from '../../src/tensor/shape.ts';
import { model, SIMPLE, tensor } from '../unit/protocol/fixtures.ts';
import type { Random } from './random.ts';

/** What may stand where a number is expected. */
export const NUMBER_TEXTS: readonly string[] = [
  '0',
  '1',
  '-1',
  '-0',
  '00',
  '01',
  '+1',
  '1.5',
  '1e3',
  '1e5',
  '1e400',
  '1e-999',
  '-',
  '256',
  '65536',
  '2147483648',
  '4294967296',
  '9007199254740993',
  '18446744073709551616',
  '-9223372036854775809',
  '99999999999999999999',
  '0x10',
  'null',
  'true',
  '"x"',
  '[]',
  '{}',
  'NaN',
  '-Infinity',
];

/** What means something to a reader of JSON, or of a request. */
export const JSON_TOKENS: readonly string[] = [
  '{',
  '}',
  '[',
  ']',
  ',',
  ':',
  '"',
  '\\',
  '\\u0000',
  '\\ud800',
  '😀',
  '\xff\xfe',
  '\xc3',
  ' ',
  '\t',
  '\n',
  '\r\n',
  '\0',
  '\ufeff',
  '"inputs"',
  '"outputs"',
  '"parameters"',
  '"shape"',
  '"datatype"',
  '"data"',
  '"binary_data_size"',
  '"name":"x"',
  '"id":"z",',
  '"data":[],',
  '"__proto__"',
  'BYTES',
  'FP32',
  'INT64',
  '[[[[',
  '[[[[[[[[[[[[[[[[',
  ']]]]]]]]',
  '[],'.repeat(50),
  '['.repeat(3000),
  '{"a":'.repeat(1000),
];

export interface Sample {
  readonly body: Buffer;
  readonly headerLength: number | undefined;
}

const TYPES = Object.keys(DATATYPES) as Datatype[];
const JSON_TYPES = TYPES.filter((datatype) => datatypeInfo(datatype).json);

export const MODELS: readonly ModelInterface[] = [
  SIMPLE,
  ...JSON_TYPES.map((datatype) =>
    model(`n${datatype}`, [tensor('x', datatype, [-1, -1])], [tensor('y', datatype, [-1])]),
  ),
  model('raw', [tensor('x', 'FP16', [-1, 2])], [tensor('y', 'BF16', [-1])], { maxBatchSize: 4 }),
  model(
    'mixed',
    [tensor('a', 'FP32', [-1, 2]), tensor('s', 'INT64', []), tensor('t', 'BYTES', [-1])],
    [tensor('b', 'BOOL', [])],
  ),
];

/** A valid element as JSON and as bytes. */
function element(random: Random, datatype: Datatype): { text: string; bytes: Uint8Array } {
  if (datatype === 'BYTES') {
    const text = random.pick(['', 'a', 'é大😀', 'a\0b', '"\\', '1.5']);
    return { text: JSON.stringify(text), bytes: encodeBytesTensor([Buffer.from(text)]) };
  }
  const small = random.int(0, 1);
  const bytes = new Uint8Array(datatypeInfo(datatype).elementBytes);
  bytes[0] = small;
  if (datatype === 'BOOL') return { text: String(small === 1), bytes };
  const texts =
    datatypeInfo(datatype).kind === 'float'
      ? ['0', '-0.5', '1e-3', '123.456', '3.4e38', '1E+2']
      : ['0', '1', '127', '1e1', '2.0'];
  return { text: random.pick(texts), bytes };
}

/**
 * A valid request for a model, in a random form.
 *
 * @param scale times as many rows, where their number is free.
 */
export function sample(random: Random, { signature, batching, maxBatchSize }: ModelInterface, scale = 1): Sample {
  const rows = batching ? random.int(0, maxBatchSize) : random.int(0, 3) * scale;
  const inputs: string[] = [];
  const tensors: Uint8Array[] = [];
  for (const { name, datatype, shape } of random.shuffled(signature.inputs)) {
    const concrete = shape.map((dim, i) => (dim >= 0 ? dim : i === 0 ? rows : random.int(0, 3)));
    const elements = Array.from({ length: elementCount(concrete)! }, () => element(random, datatype));
    const fields = [`"name":${JSON.stringify(name)}`, `"shape":[${concrete}]`, `"datatype":"${datatype}"`];
    if (!datatypeInfo(datatype).json || random.chance(0.5)) {
      const data = Buffer.concat(elements.map(({ bytes }) => bytes));
      tensors.push(data);
      fields.push(`"parameters":{"binary_data_size":${data.length}}`);
    } else fields.push(`"data":[${elements.map(({ text }) => text).join(random.pick([',', ', ']))}]`);
    inputs.push(`{${random.shuffled(fields).join()}}`);
  }
  const members = [`"inputs":[${inputs.join()}]`];
  if (random.chance(0.5)) members.push('"parameters":{"timeout":1000,"binary_data_output":true,"note":"x"}');
  if (random.chance(0.5)) {
    const wanted = signature.outputs.map(
      ({ name }) => `{"name":${JSON.stringify(name)},"parameters":{"binary_data":${random.chance(0.7)}}}`,
    );
    members.push(`"outputs":[${wanted.join()}]`);
  }
  const id = random.chance(0.5) ? [`"id":${random.pick(['"a"', '"b"', '""', '"ü"', '"q\\""'])}`] : [];
  const ordered = random.chance(0.7) ? [...id, ...members] : random.shuffled([...id, ...members]);
  const json = Buffer.from(`{${ordered.join()}}`);
  const hasHeader = tensors.length > 0 || random.chance(0.2);
  return { body: Buffer.concat([json, ...tensors]), headerLength: hasHeader ? json.length : undefined };
}

/** A sample with one to three changes, most of them in its JSON. */
export function mutate(random: Random, { body, headerLength }: Sample): Sample {
  let bytes = Buffer.from(body);
  let length = headerLength;
  for (let edits = random.int(1, 3); edits > 0 && bytes.length > 0; edits--) {
    // Mostly in the JSON, where most of the decisions are.
    const end = random.chance(0.8) ? Math.min(length ?? bytes.length, bytes.length) : bytes.length;
    const at = random.int(0, Math.max(end - 1, 0));
    const replace = (from: number, to: number, by: Buffer): void => {
      bytes = Buffer.concat([bytes.subarray(0, from), by, bytes.subarray(to)]);
      // Usually the header length is right for the edited JSON.
      if (length !== undefined && from < length && random.chance(0.9)) length += by.length - (to - from);
    };
    switch (random.int(0, 7)) {
      case 0:
        bytes[at] = bytes[at]! ^ (1 << random.int(0, 7));
        break;
      case 1:
        bytes = bytes.subarray(0, at);
        break;
      case 2:
        replace(at, Math.min(at + random.int(1, 20), end), Buffer.alloc(0));
        break;
      case 3:
        replace(at, at, bytes.subarray(at, Math.min(at + random.int(1, 40), end)));
        break;
      case 4: {
        const numbers = [...bytes.toString('latin1', 0, end).matchAll(/\d+/g)];
        if (numbers.length === 0) break;
        const { index, 0: text } = random.pick(numbers);
        replace(index, index + text.length, Buffer.from(random.pick(NUMBER_TEXTS)));
        break;
      }
      case 5:
        replace(at, at, Buffer.from(random.pick(JSON_TOKENS)));
        break;
      case 6:
        if (length !== undefined) length = Math.max(0, length + random.int(-3, 3));
        break;
      default:
        bytes = Buffer.concat([bytes, random.bytes(random.int(1, 9))]);
    }
  }
  if (length !== undefined) length = Math.max(0, Math.min(length, bytes.length));
  return { body: bytes, headerLength: length };
}
