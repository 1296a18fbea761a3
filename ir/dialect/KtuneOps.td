// The ktune dialect: named operators (the front end) and tiles (one block's view of a kernel).
//
// Elementwise arithmetic, casts and loops on tiles are MLIR's own arith, math and scf operations on tensors of the
// tile's shape; the dialect adds only what they lack: where a tile lies in memory, matrix products, row reductions,
// broadcasts and masks.

#ifndef KTUNE_OPS_TD
#define KTUNE_OPS_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/CommonTypeConstraints.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Ktune_Dialect : Dialect {
  let name = "ktune";
  let cppNamespace = "::ktune::ir";
  let summary = "Operator descriptions and tile programs";
  let useDefaultAttributePrinterParser = 1;
}

class Ktune_Op<string mnemonic, list<Trait> traits = []> : Op<Ktune_Dialect, mnemonic, traits>;

//===-- Attributes ------------------------------------------------------------------------------------------------===//

def Ktune_ScheduleAttr : AttrDef<Ktune_Dialect, "Schedule"> {
  let mnemonic = "schedule";
  let summary = "One kernel's schedule, e.g. #ktune.schedule<generator = row, vector = 16, unroll = 4>";
  let description = [{
    The text is that of schedule::KernelSchedule (ir/schedule/Parameters.def lists the parameters). Parsing refuses
    unknown and inactive parameters; parameters left out take their default.
  }];
  let parameters = (ins StringRefParameter<"canonical text between the angle brackets">:$text);
  let hasCustomAssemblyFormat = 1;
}

def Ktune_GenomeAttr : AttrDef<Ktune_Dialect, "Genome"> {
  let mnemonic = "genome";
  let summary = "A plan genome, e.g. #ktune.genome<fuse = [1, 1], kernels = [#ktune.schedule<...>]>";
  let parameters = (ins ArrayRefParameter<"int64_t", "one bit per fusable edge">:$fuse,
                        ArrayRefParameter<"ScheduleAttr", "one schedule per kernel">:$kernels);
  let hasCustomAssemblyFormat = 1;
}

//===-- Front end -------------------------------------------------------------------------------------------------===//

def Ktune_OperatorOp : Ktune_Op<"operator", [Pure]> {
  let summary = "A named operator of the operator table, not yet expanded";
  let description = [{
    Stands for a composite (its name is data, never code) until `ktune-decompose` replaces it by linalg operations.

    ```mlir
    %y = ktune.operator "rms_norm"(%x, %weight) {eps = 1.0e-6 : f64}
        : (tensor<?x4096xf32>, tensor<4096xf32>) -> tensor<?x4096xf32>
    ```
  }];
  let arguments = (ins StrAttr:$callee, Variadic<AnyRankedTensor>:$operands);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$callee `(` $operands `)` attr-dict `:` functional-type($operands, $result)";
}

//===-- Tiles -----------------------------------------------------------------------------------------------------===//

def Ktune_Tile : StaticShapeTensorOf<[AnyType]>;
def Ktune_Buffer : MemRefRankOf<[AnyType], [2]>;

def Ktune_TileIdOp : Ktune_Op<"tile_id", [Pure]> {
  let summary = "Which tile of the grid this is, along one dim";
  let arguments = (ins ConfinedAttr<I64Attr, [IntNonNegative, IntMaxValue<2>]>:$dim);
  let results = (outs Index:$result);
  let assemblyFormat = "$dim attr-dict";
}

def Ktune_LoadTileOp : Ktune_Op<"load_tile", [AttrSizedOperandSegments, MemoryEffects<[MemRead]>]> {
  let summary = "Reads a tile of a matrix";
  let description = [{
    Element (i, j) of the result is buffer[row + i, column + j]. With `rows < %limit`, rows at or past the limit repeat
    the last row before it (they are never stored); with `columns < %limit`, elements at or past it are zero and their
    memory is not touched. `prefetch = n` asks for the memory n cache lines ahead of each row.
  }];
  let arguments = (ins Ktune_Buffer:$buffer, Index:$row, Index:$column, Optional<Index>:$rowLimit,
                       Optional<Index>:$columnLimit, DefaultValuedAttr<I64Attr, "0">:$prefetch);
  let results = (outs Ktune_Tile:$result);
  let assemblyFormat = [{
    $buffer `[` $row `,` $column `]` (`rows` `<` $rowLimit^)? (`columns` `<` $columnLimit^)? attr-dict
    `:` type($buffer) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Ktune_StoreTileOp : Ktune_Op<"store_tile", [AttrSizedOperandSegments, MemoryEffects<[MemWrite]>]> {
  let summary = "Writes a tile of a matrix; elements at or past a limit are not written";
  let arguments = (ins Ktune_Tile:$tile, Ktune_Buffer:$buffer, Index:$row, Index:$column, Optional<Index>:$rowLimit,
                       Optional<Index>:$columnLimit, UnitAttr:$stream);
  let assemblyFormat = [{
    $tile `,` $buffer `[` $row `,` $column `]` (`rows` `<` $rowLimit^)? (`columns` `<` $columnLimit^)? attr-dict
    `:` type($tile) `->` type($buffer)
  }];
  let hasVerifier = 1;
}

def Ktune_MmaOp : Ktune_Op<"mma", [Pure, AllTypesMatch<["accumulator", "result"]>]> {
  let summary = "accumulator[i, j] + sum over k of lhs[i, k] * rhs[j, k]";
  let arguments = (ins Ktune_Tile:$accumulator, Ktune_Tile:$lhs, Ktune_Tile:$rhs);
  let results = (outs Ktune_Tile:$result);
  let assemblyFormat = "$accumulator `,` $lhs `,` $rhs attr-dict `:` type($accumulator) `,` type($lhs) `,` type($rhs)";
  let hasVerifier = 1;
}

def Ktune_ContractOp : Ktune_Op<"contract", [AttrSizedOperandSegments, MemoryEffects<[MemRead]>]> {
  let summary = "A tile of lhs * rhs^T over a range of the reduced dim: what a block of a GPU computes together";
  let description = [{
    Element (i, j) of the result is the sum over k in [begin, end) of lhs[row + i, k] * rhs[column + j, k]. How stages
    of the operands are kept in shared memory and which instruction multiplies them is the kernel's schedule's.
    Rows and columns at or past a limit repeat the last one before it.
  }];
  let arguments = (ins Ktune_Buffer:$lhs, Ktune_Buffer:$rhs, Index:$row, Index:$column, Index:$begin, Index:$end,
                       Optional<Index>:$rowLimit, Optional<Index>:$columnLimit);
  let results = (outs Ktune_Tile:$result);
  let assemblyFormat = [{
    $lhs `[` $row `]` `,` $rhs `[` $column `]` `,` `from` $begin `to` $end (`rows` `<` $rowLimit^)?
    (`columns` `<` $columnLimit^)? attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)
  }];
}

def Ktune_ReduceOp : Ktune_Op<"reduce", [Pure]> {
  let summary = "Combines each row of a tile: tensor<RxC> -> tensor<Rx1>; combine is sum, maximum or minimum";
  let arguments = (ins Ktune_Tile:$tile, DefaultValuedStrAttr<StrAttr, "sum">:$combine);
  let results = (outs Ktune_Tile:$result);
  let assemblyFormat = "$tile attr-dict `:` type($tile) `->` type($result)";
  let hasVerifier = 1;
}

def Ktune_BroadcastOp : Ktune_Op<"broadcast", [Pure]> {
  let summary = "Repeats a tile of one row, one column or one element to a larger shape";
  let arguments = (ins Ktune_Tile:$tile);
  let results = (outs Ktune_Tile:$result);
  let assemblyFormat = "$tile attr-dict `:` type($tile) `->` type($result)";
  let hasVerifier = 1;
}

def Ktune_MaskOp : Ktune_Op<"mask", [Pure, AllTypesMatch<["tile", "result"]>]> {
  let summary = "Gives the columns of a tile from column + j >= limit on what changes no result of combine: 0 for sum, "
                "-inf for maximum, +inf for minimum (before a reduction of a masked tail)";
  let arguments = (ins Ktune_Tile:$tile, Index:$column, Index:$limit,
                   DefaultValuedStrAttr<StrAttr, "sum">:$combine);
  let results = (outs Ktune_Tile:$result);
  let assemblyFormat = "$tile `[` $column `]` `columns` `<` $limit attr-dict `:` type($tile)";
  let hasVerifier = 1;
}

#endif
