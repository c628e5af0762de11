/**
 * What a caller asks for, and its form on the wire: a JSON header, followed in the binary form by the tensors' bytes in the order of the inputs.
 *
 * Source: Open Inference Protocol v2 (inference request) and its binary tensor data extension.
 */
import { type Datatype, isDatatype } from '../tensor/datatype.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import type { InputDataOf } from './data.ts';
import { binaryForm, jsonForm } from './elements.ts';
import { scalarJson, showValue } from './json.ts';

export type Parameter = string | number | bigint | boolean;
export type Parameters = Readonly<Record<string, Parameter>>;

/** One input tensor; `data` is flat and row-major. */
export type InferInput = {
  [D in Datatype]: {
    readonly name: string;
    readonly datatype: D;
    /** Empty for a scalar. */
    readonly shape: readonly number[];
    readonly data: InputDataOf[D];
    readonly parameters?: Parameters | undefined;
  };
}[Datatype];

export interface RequestedOutput {
  readonly name: string;
  /** Form of this output in the answer; by default that of the request. */
  readonly binary?: boolean | undefined;
  readonly parameters?: Parameters | undefined;
}

export interface InferRequest {
  readonly inputs: readonly InferInput[];
  /** The outputs wanted, by default all. */
  readonly outputs?: readonly (string | RequestedOutput)[] | undefined;
  /** Version of the model; the server chooses when it is absent. */
  readonly version?: string | undefined;
  /** Comes back in the answer. */
  readonly id?: string | undefined;
  readonly parameters?: Parameters | undefined;
  /** Limit of the whole call, retries included; 0 for none. The server is told the time left as `timeout`, unless `parameters` has one. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Whether tensors travel in binary (the default) or as JSON. */
  readonly binary?: boolean | undefined;
}

/** A request whose tensors have their wire form; only the time left is still open. */
export interface EncodedRequest {
  readonly id: string | undefined;
  readonly outputNames: readonly string[];
  readonly binary: boolean;
  readonly parameters: Parameters;
  /** Members of the header after `parameters`, each after a comma. */
  readonly tail: string;
  readonly chunks: readonly Uint8Array[];
}

export interface RequestBody {
  readonly headers: Record<string, string>;
  readonly body: Uint8Array;
}

/**
 * Checks a request and gives its tensors their wire form. In the binary form these refer to the caller's arrays.
 *
 * @throws TypeError or RangeError that names the input or output at fault.
 */
export function encodeRequest(request: InferRequest, binary: boolean): EncodedRequest {
  const chunks: Uint8Array[] = [];
  const inputs = request.inputs.map((input) =>
    within(`input ${showValue(input.name)}`, () => encodeInput(input, binary, chunks)),
  );
  const wanted = request.outputs?.map((output) => (typeof output === 'string' ? { name: output } : output));
  const outputs = wanted?.map((output) =>
    within(`output ${showValue(output.name)}`, () => encodeOutput(output, binary)),
  );
  assertDistinct('input', request.inputs);
  if (wanted !== undefined) assertDistinct('output', wanted);
  const all = wanted === undefined && binary ? { binary_data_output: true } : {};
  const tail = `,"inputs":[${inputs.join(',')}]${outputs === undefined ? '' : `,"outputs":[${outputs.join(',')}]`}`;
  return {
    id: request.id,
    outputNames: wanted?.map((output) => output.name) ?? [],
    binary,
    parameters: { ...all, ...request.parameters },
    tail,
    chunks,
  };
}

/**
 * The body of one try.
 *
 * @param leftMs Time the client still waits; Infinity tells the server nothing.
 */
export function requestBody(encoded: EncodedRequest, leftMs: number): RequestBody {
  const timed = Number.isFinite(leftMs) && !Object.hasOwn(encoded.parameters, 'timeout');
  const parameters = timed
    ? { ...encoded.parameters, timeout: Math.max(1, Math.round(leftMs * 1000)) }
    : encoded.parameters;
  const id = encoded.id === undefined ? '' : `"id":${JSON.stringify(encoded.id)},`;
  const header = Buffer.from(
    `{${id}"parameters":${within('parameters', () => parametersJson(parameters))}${encoded.tail}}`,
  );
  if (!encoded.binary) return { headers: { 'content-type': 'application/json' }, body: header };
  return {
    headers: { 'content-type': 'application/octet-stream', 'inference-header-content-length': String(header.length) },
    body: Buffer.concat([header, ...encoded.chunks]),
  };
}

/** JSON of one input; in the binary form its bytes are added to `chunks`. */
function encodeInput(input: InferInput, binary: boolean, chunks: Uint8Array[]): string {
  if (!isDatatype(input.datatype)) throw new TypeError(`${showValue(input.datatype)} is not a datatype`);
  const count = elementCount(input.shape);
  if (count === undefined) throw new RangeError(`${formatShape(input.shape)} is not a shape`);
  const given = (input.data as ArrayLike<unknown>).length;
  if (given !== count)
    throw new RangeError(`shape ${formatShape(input.shape)} needs ${count} elements, data has ${given}`);
  const head = `{"name":${JSON.stringify(input.name)},"shape":[${input.shape.join(',')}],"datatype":"${input.datatype}"`;
  if (!binary) {
    const parameters = input.parameters === undefined ? '' : `,"parameters":${parametersJson(input.parameters)}`;
    return `${head}${parameters},"data":${jsonForm(input.datatype, input.data)}}`;
  }
  const bytes = binaryForm(input.datatype, input.data);
  chunks.push(bytes);
  return `${head},"parameters":${parametersJson({ ...input.parameters, binary_data_size: bytes.length })}}`;
}

function encodeOutput(output: RequestedOutput, binary: boolean): string {
  const parameters = parametersJson({ ...output.parameters, binary_data: output.binary ?? binary });
  return `{"name":${JSON.stringify(output.name)},"parameters":${parameters}}`;
}

function parametersJson(parameters: Parameters): string {
  const members = Object.entries(parameters).map(([key, value]) => {
    if (!['string', 'number', 'bigint', 'boolean'].includes(typeof value)) {
      throw new TypeError(`parameter ${showValue(key)} must be a string, a number, a bigint or a boolean`);
    }
    return `${JSON.stringify(key)}:${scalarJson(value)}`;
  });
  return `{${members.join(',')}}`;
}

function assertDistinct(kind: string, entries: readonly { readonly name: string }[]): void {
  const names = new Set<string>();
  for (const { name } of entries) {
    if (names.has(name)) throw new TypeError(`${kind} ${showValue(name)} is given twice`);
    names.add(name);
  }
}

/** Puts what an error is about before its message. */
function within<T>(what: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    if (error instanceof RangeError) throw new RangeError(`${what}: ${error.message}`, { cause: error });
    if (error instanceof TypeError) throw new TypeError(`${what}: ${error.message}`, { cause: error });
    throw error;
  }
}
