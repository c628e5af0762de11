/**
 * What runs in a thread of an ingress: reading the JSON of a large request, writing that of a large answer, processing large outputs. Pure functions of their task, by the same code as in the event
 * loop, so that their results and refusals are the same.
 *
 * Tasks and outcomes are plain data. Tensors and texts are moved between the threads and never copied: what a task or an outcome holds belongs to whoever got it.
 */
import { move, transferableSymbol, valueSymbol } from 'piscina';
import { BatchportError, type ErrorCode } from '../config/errors.ts';
import { type OutputJob, processOutput } from '../postprocess/process.ts';
import type { RequestTemplate } from '../protocol/bound-request.ts';
import { JsonCursor } from '../protocol/json-cursor.ts';
import { InterfaceChecks, type ModelInterface, type RequestLimits } from '../protocol/model-interface.ts';
import { type RequestDraft, readRequest } from '../protocol/request-reader.ts';
import { type OutputTensor, ResponseEncoder } from '../protocol/response-encoder.ts';

export interface ReadTask {
  readonly model: ModelInterface;
  readonly limits: RequestLimits;
  /** Of the body, in order. */
  readonly pieces: readonly Uint8Array<ArrayBuffer>[];
  /** Bytes of text at the start of the body, undefined when it is nothing else. */
  readonly headerLength: number | undefined;
}

export interface ReadResult {
  readonly draft: RequestDraft;
  /** In one piece; empty when it is text alone, of which nothing is needed any more. */
  readonly body: Uint8Array<ArrayBuffer>;
}

export interface WriteTask {
  readonly model: ModelInterface;
  readonly template: RequestTemplate;
  readonly id: string | undefined;
  readonly outputs: readonly OutputTensor[];
}

/** Errors that are ours lose their class on the way. */
export type Outcome<T> =
  | { readonly value: T }
  | { readonly refusal: { readonly code: ErrorCode; readonly message: string } }
  | { readonly bug: unknown };

/** An `Outcome<ReadResult>`, with the memory that it lies in, for Piscina to hand over. */
export function readJson({ model, limits, pieces, headerLength }: ReadTask): unknown {
  return outcomeOf(() => {
    const whole = pieces.length === 1 ? asBuffer(pieces[0]!) : Buffer.concat(pieces);
    const draft = readRequest(new JsonCursor(whole.subarray(0, headerLength)), new InterfaceChecks(model, limits));
    const body = headerLength === undefined ? new Uint8Array(0) : withOwnMemory(whole);
    const memory = [body.buffer];
    const inputs = draft.inputs.map((input) => {
      if (input.data === undefined) return input;
      const data = withOwnMemory(input.data);
      memory.push(data.buffer);
      return { ...input, data };
    });
    return { value: { draft: { ...draft, inputs }, body }, memory };
  });
}

/** An `Outcome<EncodedResponse>` likewise. */
export function writeJson(task: WriteTask): unknown {
  return outcomeOf(() => {
    const { headerLength, body } = new ResponseEncoder(task.model).encode(task, task.outputs);
    const data = withOwnMemory(body);
    return { value: { headerLength, body: data as Buffer }, memory: [data.buffer] };
  });
}

/** An `Outcome<OutputTensor[]>` likewise. */
export function processOutputs(jobs: readonly OutputJob[]): unknown {
  return outcomeOf(() => {
    const memory = new Set<ArrayBuffer>();
    const value = jobs.map((job) => {
      const { shape, data } = processOutput(job);
      const own = withOwnMemory(data);
      memory.add(own.buffer);
      return { shape, data: own };
    });
    return { value, memory: [...memory] };
  });
}

function outcomeOf<T>(work: () => { value: T; memory: readonly ArrayBuffer[] }): unknown {
  let outcome: Outcome<T>;
  try {
    const { value, memory } = work();
    outcome = { value };
    return move({ [valueSymbol]: outcome, [transferableSymbol]: memory });
  } catch (error) {
    const refused = error instanceof BatchportError;
    outcome = refused ? { refusal: { code: error.code, message: error.message } } : { bug: error };
    return outcome;
  }
}

function asBuffer({ buffer, byteOffset, length }: Uint8Array<ArrayBuffer>): Buffer {
  return Buffer.from(buffer, byteOffset, length);
}

/** Short buffers share memory with others, which must not move along. */
function withOwnMemory(data: Uint8Array): Uint8Array<ArrayBuffer> {
  const own = data as Uint8Array<ArrayBuffer>;
  return own.length < Buffer.poolSize ? new Uint8Array(own) : own;
}
