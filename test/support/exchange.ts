/**
 * Inference over HTTP as the protocol's text has it, written apart from the client and from the server's own code: requests from tensors, tensors from
 * answers, and checks of refusals.
 */
import assert from 'node:assert/strict';
import { ERRORS, type ErrorCode } from '../../src/config/errors.ts';
import { decodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import { elementCount } from '../../src/tensor/shape.ts';
import { RawConnection, requestBytes } from './raw.ts';
import type { TestServer } from './server.ts';
import { fromWire, type TensorMap, type TestTensor, tensor, wireBytes } from './tensor.ts';

const ANSWER_LIMIT_MS = 60_000;
export const HEADER_LENGTH = 'Inference-Header-Content-Length';

export type HeaderList = readonly (readonly [string, string])[];

/** What is common to the answers of `fetch` and of a bare socket. */
export interface Answer {
  readonly status: number;
  readonly body: Buffer;
  header(name: string): string | undefined;
}

export interface InferRequest {
  readonly headers: HeaderList;
  readonly body: Buffer;
}

/** Further members of a request's JSON, such as `id`, `outputs` or `parameters`. */
export type RequestFields = Readonly<Record<string, unknown>>;

/** Path of a model's inference. */
export function inferPath(model: string, version?: string): string {
  const base = `/v2/models/${encodeURIComponent(model)}`;
  return `${version === undefined ? base : `${base}/versions/${version}`}/infer`;
}

/** A request whose body is the given JSON text. */
export function jsonBody(text: string): InferRequest {
  return { headers: [], body: Buffer.from(text) };
}

/** A request with JSON in front and bytes behind it. */
export function binaryBody(json: string, ...parts: readonly Uint8Array[]): InferRequest {
  const header = Buffer.from(json);
  return { headers: [[HEADER_LENGTH, String(header.length)]], body: Buffer.concat([header, ...parts]) };
}

/** Tensors as JSON. BYTES elements must be UTF-8; FP16 and BF16 have no JSON form. */
export function jsonRequest(inputs: TensorMap, fields: RequestFields = {}): InferRequest {
  const members = [...inputs].map(
    ([name, value]) => `${tensorHead(name, value)},"data":[${elementTexts(value).join()}]}`,
  );
  return jsonBody(requestText(members, fields));
}

/** Tensors in the binary form, and the outputs in it too unless `fields` says otherwise. */
export function binaryRequest(inputs: TensorMap, fields: RequestFields = {}): InferRequest {
  const parts = [...inputs.values()].map(wireBytes);
  const members = [...inputs].map(
    ([name, value], n) => `${tensorHead(name, value)},"parameters":{"binary_data_size":${parts[n]!.length}}}`,
  );
  return binaryBody(requestText(members, { parameters: { binary_data_output: true }, ...fields }), ...parts);
}

function requestText(inputs: readonly string[], fields: RequestFields): string {
  const others = Object.entries(fields).map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)},`);
  return `{${others.join('')}"inputs":[${inputs.join()}]}`;
}

/** Beginning of a tensor's object. */
function tensorHead(name: string, { datatype, shape }: TestTensor): string {
  return `{"name":${JSON.stringify(name)},"datatype":"${datatype}","shape":[${shape.join()}]`;
}

/** JSON text of each element. */
function elementTexts({ datatype, data }: TestTensor): string[] {
  assert(datatypeInfo(datatype).json, `${datatype} has no JSON form`);
  return Array.from<number | bigint | Uint8Array, string>(data, (element) => {
    if (element instanceof Uint8Array) return JSON.stringify(new TextDecoder('utf-8', { fatal: true }).decode(element));
    if (datatype === 'BOOL') return element === 0 ? 'false' : 'true';
    return Object.is(element, -0) ? '-0.0' : String(element);
  });
}

/** Sends one request on a connection of its own. */
export async function send(url: string, path: string, { headers, body }: InferRequest): Promise<Answer> {
  const [answer] = await sendTogether(url, [requestBytes('POST', path, headers, body)]);
  return answer!;
}

/** Sends an inference request for a model. */
export function infer(url: string, model: string, request: InferRequest, version?: string): Promise<Answer> {
  return send(url, inferPath(model, version), request);
}

/** Bytes of an inference request, for `sendTogether`. */
export function inferBytes(model: string, { headers, body }: InferRequest, version?: string): Buffer {
  return requestBytes('POST', inferPath(model, version), headers, body);
}

/**
 * Sends requests in a single write on one connection, so that the server reads them in one turn: small ones are in its queue together however slow the
 * machine is. Their answers come in the same order.
 */
export async function sendTogether(url: string, requests: readonly Uint8Array[]): Promise<Answer[]> {
  const connection = await RawConnection.open(url);
  try {
    await connection.write(Buffer.concat(requests));
    const answers: Answer[] = [];
    for (let n = 0; n < requests.length; n++) answers.push(await connection.response(ANSWER_LIMIT_MS, 'POST'));
    return answers;
  } finally {
    connection.destroy();
  }
}

/** `GET`, or another method without a body. */
export async function get(url: string, path: string, method = 'GET'): Promise<Answer> {
  const [answer] = await sendTogether(url, [requestBytes(method, path)]);
  return answer!;
}

/** JSON of an answer. Integers beyond 2^53 are not exact: compare text where they matter. */
export function json(answer: Answer): Record<string, unknown> {
  const length = answer.header(HEADER_LENGTH);
  return JSON.parse(answer.body.toString('utf8', 0, length === undefined ? answer.body.length : Number(length)));
}

interface OutputObject {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: number[];
  readonly data?: unknown[];
  readonly parameters?: { readonly binary_data_size?: number };
}

/** The outputs of a successful answer, each in the form it came in; the bytes behind the JSON must be exactly those it announces. */
export function outputsOf(answer: Answer): Map<string, TestTensor> {
  assert.equal(answer.status, 200, answer.body.toString('utf8', 0, 500));
  const length = answer.header(HEADER_LENGTH);
  const end = length === undefined ? answer.body.length : Number(length);
  const text = answer.body.toString('utf8', 0, end);
  // Numbers of tensors as strings, so that each is read exactly by its datatype.
  const exact = text.replace(/"data":\[([^\]"]+)\]/g, (_, list: string) => `"data":["${list.replaceAll(',', '","')}"]`);
  const { outputs } = JSON.parse(exact) as { outputs: OutputObject[] };
  let at = end;
  const result = new Map<string, TestTensor>();
  for (const { name, datatype, shape, data, parameters } of outputs) {
    assert(!result.has(name), `output ${name} comes twice`);
    if (data !== undefined) {
      assert.equal(parameters?.binary_data_size, undefined, `output ${name} is in both forms`);
      result.set(name, fromTexts(datatype, shape, data));
      continue;
    }
    const size = parameters?.binary_data_size;
    assert(size !== undefined, `output ${name} is in no form`);
    const bytes = answer.body.subarray(at, at + size);
    assert.equal(bytes.length, size, `bytes of output ${name}`);
    result.set(name, datatype === 'BYTES' ? fromElements(shape, bytes) : fromWire(datatype, shape, bytes));
    at += size;
  }
  assert.equal(at, answer.body.length, 'bytes behind the last output');
  return result;
}

function fromElements(shape: readonly number[], bytes: Uint8Array): TestTensor {
  const elements = decodeBytesTensor(bytes, elementCount(shape)!);
  assert(elements !== undefined, 'a BYTES output is not well-formed');
  return tensor('BYTES', shape, elements);
}

function fromTexts(datatype: Datatype, shape: readonly number[], texts: readonly unknown[]): TestTensor {
  const list = texts as readonly string[];
  if (datatype === 'BYTES')
    return tensor(
      'BYTES',
      shape,
      list.map((text) => new TextEncoder().encode(text)),
    );
  const { elementBytes, kind } = datatypeInfo(datatype);
  const bytes = new Uint8Array(list.length * elementBytes);
  const view = new DataView(bytes.buffer);
  for (const [n, text] of list.entries()) {
    const at = n * elementBytes;
    if (kind === 'bool') view.setUint8(at, { true: 1, false: 0 }[text] ?? assert.fail(`BOOL element ${text}`));
    else if (kind === 'float' && elementBytes === 4) view.setFloat32(at, Number(text), true);
    else if (kind === 'float' && elementBytes === 8) view.setFloat64(at, Number(text), true);
    else {
      assert.match(text, /^-?\d+$/, `${datatype} element`);
      const value = BigInt.asUintN(64, BigInt(text));
      for (let byte = 0; byte < elementBytes; byte++) bytes[at + byte] = Number((value >> BigInt(8 * byte)) & 255n);
    }
  }
  return fromWire(datatype, shape, bytes);
}

/** Fails unless an answer is a refusal of the given kind: its status, and exactly the members `error` and `code`. */
export function assertRefused(answer: Answer, code: ErrorCode, message: RegExp): void {
  const text = answer.body.toString('utf8');
  assert.equal(answer.status, ERRORS[code].http, `status of ${text}`);
  assert.equal(answer.header('content-type'), 'application/json');
  assert.equal(answer.header(HEADER_LENGTH), undefined);
  const { error, ...rest } = JSON.parse(text) as { error: string };
  assert.deepEqual(rest, { code });
  assert.match(error, message);
}

/** Fails when a process of the server has died and been started again, or the server has stopped being ready. */
export async function assertUnharmed(server: TestServer): Promise<void> {
  const { processes } = await server.status();
  for (const { role, pid, restarts } of processes) assert.equal(restarts, 0, `restarts of ${role} ${pid}`);
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
}
