/**
 * Checks a ModelInferRequest against the model it is for.
 *
 * Raw or typed is all or nothing: raw_input_contents has one tensor per input that is not in shared memory, in the order of the inputs, and then no input has
 * contents of its own.
 */
import { BatchportError } from '../../config/errors.ts';
import { checkContent, checkDeclaredSize } from '../binary-input.ts';
import type { BoundRequest } from '../bound-request.ts';
import { type InterfaceChecks, quoteName } from '../model-interface.ts';
import type { OutputDraft } from '../request-reader.ts';
import type { SharedMemory } from '../shared-memory.ts';
import { bindShared, type SharedInput } from '../shared-tensors.ts';
import type { TemplateTable } from '../template-table.ts';
import type { InferMessage, InferOutput } from './infer-message.ts';
import { readTypedContents } from './typed-contents.ts';

/**
 * @returns the request; raw tensors are views of the message, which must stay as it is until they have been copied.
 * @throws BAD_TENSOR, BAD_REQUEST
 */
export function bindInferMessage(
  message: InferMessage,
  checks: InterfaceChecks,
  templates: TemplateTable,
  memory: SharedMemory,
): BoundRequest {
  const specs = checks.model.signature.inputs;
  const data: (Uint8Array | undefined)[] = new Array(specs.length).fill(undefined);
  const shapes: (readonly number[])[] = new Array(specs.length);
  const inputBytes: number[] = new Array(specs.length);
  const raw = message.raw.length > 0;
  if (raw) checkRaw(message);
  let rawAt = 0;
  const bound: SharedInput[] = new Array(specs.length);
  for (let n = 0; n < message.inputs.length; n++) {
    const input = message.inputs[n]!;
    const index = checks.inputIndex(input.name);
    const spec = specs[index]!;
    if (data[index] !== undefined) {
      throw new BatchportError('BAD_TENSOR', `input '${spec.name}' already exists in request; send each input once`);
    }
    checks.checkDatatype(spec, input.datatype);
    const shape = checks.fitShape(spec, input.shape);
    const { count, bytes } = checks.sizeOf(spec, shape);
    if (input.shared !== undefined) {
      if (input.contents.length > 0) {
        throw new BatchportError('BAD_TENSOR', `input '${spec.name}' is in shared memory, and must have no contents`);
      }
      data[index] = NO_BYTES;
    } else if (raw) {
      const tensor = message.bytes.subarray(message.raw[rawAt++], message.raw[rawAt++]);
      checkDeclaredSize(checks, spec, bytes, tensor.length);
      checkContent(spec, count, tensor);
      data[index] = tensor;
    } else data[index] = readTypedContents(message.bytes, input.contents, spec, count, checks);
    bound[index] = { spec, bytes, count, shared: input.shared };
    shapes[index] = shape;
    inputBytes[index] = bytes;
  }
  checks.checkComplete(data);
  const outputs = outputsOf(message.outputs, checks);
  const template = templates.templateOf(shapes, inputBytes, outputs, true);
  const { timeoutUs, priority } = message.parameters;
  const inputs = data as Uint8Array[];
  const request = { template, id: message.id === '' ? undefined : message.id, inputs, timeoutUs, priority };
  const shared = bindShared(bound, outputs, checks, memory);
  return shared === undefined ? request : { ...request, shared: shared(inputs) };
}

function checkRaw({ inputs, raw }: InferMessage): void {
  const typed = inputs.find(({ contents }) => contents.length > 0);
  if (typed !== undefined) {
    throw new BatchportError(
      'BAD_TENSOR',
      `contents field must not be specified when using raw_input_contents, but input ${quoteName(typed.name)} has contents`,
    );
  }
  const sent = inputs.reduce((count, { shared }) => (shared === undefined ? count + 1 : count), 0);
  if (raw.length === 2 * sent) return;
  const whose = sent === inputs.length ? 'inputs' : 'inputs that are not in shared memory';
  throw new BatchportError(
    'BAD_TENSOR',
    `raw_input_contents has ${raw.length / 2} tensors for ${sent} ${whose}; it holds one per input, in their order`,
  );
}

const EVERY: readonly OutputDraft[] = [];
const NO_BYTES = Buffer.alloc(0);

function outputsOf(wanted: readonly InferOutput[], checks: InterfaceChecks): readonly OutputDraft[] {
  if (wanted.length === 0) return EVERY;
  const outputs: OutputDraft[] = [];
  for (const { name, shared, classes } of wanted) {
    const index = checks.outputIndex(name);
    if (outputs.some((other) => other.index === index)) {
      throw new BatchportError('BAD_TENSOR', `output '${name}' is requested twice; ask for each output once`);
    }
    outputs.push({ index, binary: true, shared, classes });
  }
  return outputs;
}
