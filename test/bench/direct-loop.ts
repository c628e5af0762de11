/**
 * The rival for everything that the model itself dominates: a loop around ONNX Runtime's C API, batch after batch, and nothing else.
 */
import { Cells } from '../../src/runtime/cells.ts';
import { Runner } from '../../src/runtime/runner.ts';
import { Session } from '../../src/runtime/session.ts';
import { answerParent } from './child.ts';

export interface DirectJob {
  readonly modelPath: string;
  readonly intraOpThreads: number;
  /** Rows of a batch on average: batches of the whole numbers beside it are mixed so that they come to it. */
  readonly batchRows: number;
  readonly seconds: number;
}

export interface DirectReport {
  readonly rows: number;
  readonly seconds: number;
}

const sessions = new Map<string, Session>();

/** The model has one input and one output, [N, columns] FP32 both. */
function run({ modelPath, intraOpThreads, batchRows, seconds }: DirectJob): DirectReport {
  let session = sessions.get(modelPath);
  session ??= Session.load(modelPath, { provider: 'cpu', deviceId: 0, intraOpThreads });
  sessions.set(modelPath, session);
  const { inputs, outputs } = session.signature;
  const inputColumns = inputs[0]!.shape[1]!;
  const outputColumns = outputs[0]!.shape[1]!;
  const rowsMax = Math.ceil(batchRows);
  const input = new Cells(Math.ceil((rowsMax * inputColumns) / 2));
  const output = new Cells(Math.ceil((rowsMax * outputColumns) / 2));
  const values = new Float32Array(input.bytes.buffer, input.bytes.byteOffset, rowsMax * inputColumns);
  for (let i = 0; i < values.length; i++) values[i] = Math.sin(i + 1);
  const runner = new Runner(session.handle);
  try {
    let rows = 0;
    let batches = 0;
    const started = performance.now();
    const end = started + seconds * 1000;
    while (performance.now() < end) {
      const n = Math.max(1, Math.round((batches + 1) * batchRows) - rows);
      const x = runner.tensorOver('FP32', input.address, n * inputColumns * 4, [n, inputColumns]);
      const y = runner.tensorOver('FP32', output.address, n * outputColumns * 4, [n, outputColumns]);
      runner.run([x], [0], [y]);
      runner.release(x);
      runner.release(y);
      rows += n;
      batches++;
    }
    return { rows, seconds: (performance.now() - started) / 1000 };
  } finally {
    runner.dispose();
  }
}

answerParent<DirectJob, DirectReport>(run);
