/**
 * The name of a row's shape in the memory account: what a run takes depends on its rows and on this. Pure.
 */
export interface ShapeKey {
  readonly key: string;
  /** Elements of one row over all inputs. */
  readonly elements: number;
}

/** @param dims of each input: those of a row, or all of them where requests run alone (`whole`). */
export function shapeKey(whole: boolean, dims: readonly (readonly number[])[]): ShapeKey {
  const key = `${whole ? 'whole ' : ''}${dims.map((shape) => shape.join('x')).join(' ')}`;
  const elements = dims.reduce((sum, shape) => sum + shape.reduce((product, dim) => product * dim, 1), 0);
  return { key, elements };
}
