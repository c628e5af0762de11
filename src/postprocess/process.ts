/**
 * What becomes of an output between the model's run and the answer. Pure functions of a job, which is plain data: they run in the event loop of an ingress for small
 * outputs and in a thread for large ones.
 */
import { BatchportError } from '../config/errors.ts';
import type { PostprocessStep } from '../config/model-config.ts';
import { classTexts } from './classes.ts';
import type { Tensor } from './numbers.ts';
import { argmax, ctcDecode, dequantize, meanPool, normalize, StepFailed, sigmoid, softmax } from './steps.ts';
import type { TextLines } from './text-lines.ts';

export interface OutputJob {
  /** Of the output. */
  readonly name: string;
  readonly tensor: Tensor;
  readonly steps: readonly PostprocessStep[];
  /** Parallel to the steps: what a step needs besides. */
  readonly masks: readonly (Tensor | undefined)[];
  readonly dictionaries: readonly (TextLines | undefined)[];
  /** Leading dimensions that count rows: 1 where the model is batched, else 0. */
  readonly rowDims: number;
  /** How many classes of each row the request asks for; 0: the values themselves. */
  readonly classes: number;
  readonly labels: TextLines | undefined;
}

/** @throws MODEL_FAILED where the tensor is not what a step needs */
export function processOutput(job: OutputJob): Tensor {
  const { name, rowDims, classes, labels } = job;
  let { tensor } = job;
  try {
    for (let n = 0; n < job.steps.length; n++) tensor = done(job, n, tensor);
  } catch (error) {
    if (!(error instanceof StepFailed)) throw error;
    throw new BatchportError('MODEL_FAILED', `output '${name}' could not be processed: ${error.message}`);
  }
  return classes > 0 ? classTexts(tensor, rowDims, classes, labels) : tensor;
}

function done({ steps, masks, dictionaries, labels }: OutputJob, n: number, tensor: Tensor): Tensor {
  const step = steps[n]!;
  switch (step.op) {
    case 'softmax':
      return softmax(tensor, step);
    case 'sigmoid':
      return sigmoid(tensor);
    case 'argmax':
      return argmax(tensor, step);
    case 'top_k':
      return classTexts(tensor, tensor.shape.length - 1, step.k, labels);
    case 'normalize':
      return normalize(tensor, step);
    case 'mean_pool':
      return meanPool(tensor, step, masks[n]);
    case 'dequantize':
      return dequantize(tensor, step);
    case 'ctc_decode': {
      const dictionary = dictionaries[n];
      if (dictionary === undefined) throw new Error('a dictionary is missing: this is a bug');
      return ctcDecode(tensor, step, dictionary);
    }
  }
}
