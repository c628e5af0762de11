/**
 * Binds the tensors of a request that are in shared memory: the same rules as for those that come with it.
 */
import type { TensorBytes } from '../queue/tensor-source.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import { checkContent, checkDeclaredSize, contentMatters } from './binary-input.ts';
import type { SharedTensors } from './bound-request.ts';
import type { InterfaceChecks } from './model-interface.ts';
import type { SharedMemory, SharedReference } from './shared-memory.ts';

/** An input whose name, datatype and shape are right. */
export interface SharedInput {
  readonly spec: TensorSpec;
  /** Bytes that its shape calls for; -1 for BYTES. */
  readonly bytes: number;
  /** Elements. */
  readonly count: number;
  /** Undefined where it came with the request. */
  readonly shared: SharedReference | undefined;
}

/** An output that is asked for. */
export interface SharedOutput {
  /** In the signature. */
  readonly index: number;
  readonly shared: SharedReference | undefined;
}

/**
 * @param inputs in signature order.
 * @param outputs in the order of the request; none for every output.
 * @returns undefined where nothing is there; else what makes all of it of the inputs that came with the request.
 * @throws BAD_TENSOR, BAD_REQUEST
 */
export function bindShared(
  inputs: readonly SharedInput[],
  outputs: readonly SharedOutput[],
  checks: InterfaceChecks,
  memory: SharedMemory,
): ((sent: readonly Uint8Array[]) => SharedTensors) | undefined {
  if (inputs.every(isSent) && outputs.every(isSent)) return undefined;
  const sources = inputs.map((input) => bindInput(input, checks, memory));
  const targets = outputs.map(({ index, shared }) => {
    if (shared === undefined) return undefined;
    return memory.target(shared, `output '${checks.model.signature.outputs[index]!.name}'`);
  });
  const bytes = inputs.reduce((sum, { shared }) => sum + (shared?.byteSize ?? 0), 0);
  return (sent) => ({ inputs: sources.map((source, n) => source ?? sent[n]!), bytes, targets });
}

function isSent({ shared }: Pick<SharedInput, 'shared'>): boolean {
  return shared === undefined;
}

function bindInput(input: SharedInput, checks: InterfaceChecks, memory: SharedMemory): TensorBytes | undefined {
  const { spec, bytes, count, shared } = input;
  if (shared === undefined) return undefined;
  const owner = `input '${spec.name}'`;
  checkDeclaredSize(checks, spec, bytes, shared.byteSize);
  if (!contentMatters(spec)) return memory.source(shared, owner);
  // Looked at where the client cannot change it any more.
  const data = memory.read(shared, owner);
  checkContent(spec, count, data);
  return data;
}
