//! The pickle of a state dict: the instructions that `torch.save` writes for one, in Python's protocol 2, and no others.
//!
//! Values refer to others by number, so that nothing is copied however often it is repeated, and nothing is nested in
//! memory however deep the file says it is. What is called is known by its name alone and is one of three. (CPython's
//! `Lib/pickletools.py` says what each instruction does.)

use super::refused;
use super::storage::{Kind, Storage};
use crate::safetensors::MAX_DIMS;
use crate::weights::{ModelFileError, clipped};

/// Longest pickle that is read; tens of thousands of tensors take a tenth of it.
const MAX_PICKLE_BYTES: usize = 16 << 20;
/// Most tensors, and most storages, and most entries of dicts.
const MAX_TENSORS: usize = 1 << 17;
/// Most values in tuples, and most that are remembered to be repeated: a tensor takes some 20.
const MAX_VALUES: usize = 1 << 21;
/// Most values that wait for an instruction. Python writes dicts a thousand entries at a time.
const MAX_STACK: usize = 4096;
/// Most beginnings of tuples and dicts without their ends; torch's have three.
const MAX_MARKS: usize = 16;
/// Longest text: a tensor's name.
const MAX_TEXT_BYTES: usize = 4096;

/// A tensor over a part of a storage. Sizes and strides are numbers of values, the contiguous one last.
#[derive(Debug)]
pub(super) struct StoredTensor<'a> {
    pub(super) storage: Storage<'a>,
    pub(super) offset: u64,
    pub(super) sizes: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

/// Reads a pickle that is a dict from names to tensors; gives its entries in their order.
pub(super) fn read_pickle(bytes: &[u8]) -> Result<Vec<(&str, StoredTensor<'_>)>, ModelFileError> {
    if bytes.len() > MAX_PICKLE_BYTES {
        let (what, offset) = ("pickle of the state dict", 0);
        let (length, limit) = (bytes.len() as u64, MAX_PICKLE_BYTES as u64);
        return Err(ModelFileError::Length {
            what,
            offset,
            length,
            limit,
        });
    }
    let mut reader = Reader {
        bytes,
        ..Reader::default()
    };
    let top = reader.run()?;
    reader.state_dict(top)
}

/// What may be called or named.
#[derive(Debug, Clone, Copy)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Kind),
}

impl Global {
    fn named(module: &[u8], name: &[u8]) -> Option<Self> {
        match (module, name) {
            (b"collections", b"OrderedDict") => Some(Self::OrderedDict),
            (b"torch._utils", b"_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            (b"torch._utils", b"_rebuild_parameter") => Some(Self::RebuildParameter),
            (b"torch", name) => Kind::of_storage(name).map(Self::Storage),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    /// None, or one of the truths: what a tensor's gradient has.
    Plain,
    Int(i64),
    Text(&'a str),
    Global(Global),
    /// From which to which of `items`.
    Tuple(u32, u32),
    /// Which dict.
    Dict(u32),
    /// Which of `storages`.
    Storage(u32),
    /// Which of `tensors`.
    Tensor(u32),
}

/// A tensor before its tuples are looked at.
#[derive(Debug, Clone, Copy)]
struct Rebuilt {
    storage: u32,
    offset: u64,
    sizes: (u32, u32),
    strides: (u32, u32),
}

#[derive(Debug, Default)]
struct Reader<'a> {
    bytes: &'a [u8],
    /// Where the next instruction is.
    at: usize,
    stack: Vec<Value<'a>>,
    /// How long the stack was at each beginning that has no end yet.
    marks: Vec<usize>,
    remembered: Vec<Value<'a>>,
    items: Vec<Value<'a>>,
    storages: Vec<Storage<'a>>,
    tensors: Vec<Rebuilt>,
    num_dicts: u32,
    /// Of all dicts: which, the key, the value.
    entries: Vec<(u32, &'a str, Value<'a>)>,
}

impl<'a> Reader<'a> {
    /// Follows the instructions to the last one; gives the value that is left.
    fn run(&mut self) -> Result<Value<'a>, ModelFileError> {
        let start = self.take(2)?;
        if start != [0x80, 2] {
            let found = if start[0] == 0x80 {
                start[1].to_string()
            } else {
                "none".to_owned()
            };
            return Err(refused(format!(
                "its pickle is of protocol {found}; expected 2, which torch.save has unless it is told otherwise: save it \
                 again by torch.save(model.state_dict(), FILE), or as safetensors"
            )));
        }
        loop {
            match self.take(1)?[0] {
                b'.' => return self.last(),
                instruction => self.follow(instruction)?,
            }
        }
    }

    fn last(&mut self) -> Result<Value<'a>, ModelFileError> {
        let top = self.pop()?;
        match self.stack.is_empty() && self.marks.is_empty() && self.at == self.bytes.len() {
            true => Ok(top),
            false => Err(self.damaged("it ends before its end")),
        }
    }

    fn follow(&mut self, instruction: u8) -> Result<(), ModelFileError> {
        match instruction {
            b'(' => return self.begin(),                              // MARK
            b'q' | b'r' => return self.remember(instruction == b'r'), // BINPUT, LONG_BINPUT
            b'b' => return self.build(),                              // BUILD
            b's' => return self.set_one(),                            // SETITEM
            b'u' => return self.set_all(),                            // SETITEMS
            _ => {}
        }
        let value = match instruction {
            b'}' => self.new_dict()?,   // EMPTY_DICT
            b')' => Value::Tuple(0, 0), // EMPTY_TUPLE
            b't' => {
                let start = self.end()?; // TUPLE
                self.tuple_from(start)?
            }
            0x85..=0x87 => self.short_tuple(usize::from(instruction - 0x84))?, // TUPLE1 to TUPLE3
            b'N' | 0x88 | 0x89 => Value::Plain,                                // NONE, NEWTRUE, NEWFALSE
            b'K' => Value::Int(self.number(1)?),                               // BININT1
            b'M' => Value::Int(self.number(2)?),                               // BININT2
            b'J' => Value::Int(i64::from(self.number(4)? as i32)),             // BININT
            0x8a => self.long()?,                                              // LONG1
            b'X' => self.text()?,                                              // BINUNICODE
            b'c' => self.global()?,                                            // GLOBAL
            b'h' | b'j' => self.repeated(instruction == b'j')?,                // BINGET, LONG_BINGET
            b'Q' => self.storage()?,                                           // BINPERSID
            b'R' => self.call()?,                                              // REDUCE
            other => return Err(self.unknown(other)),
        };
        self.push(value)
    }

    /// Takes the next bytes.
    fn take(&mut self, num_bytes: usize) -> Result<&'a [u8], ModelFileError> {
        let rest = &self.bytes[self.at..];
        let found = rest.get(..num_bytes).ok_or_else(|| self.damaged("it is cut short"))?;
        self.at += num_bytes;
        Ok(found)
    }

    /// A number of up to seven bytes.
    fn number(&mut self, num_bytes: usize) -> Result<i64, ModelFileError> {
        let bytes = self.take(num_bytes)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | i64::from(*byte)))
    }

    fn long(&mut self) -> Result<Value<'a>, ModelFileError> {
        let num_bytes = self.take(1)?[0];
        let bytes = self.take(usize::from(num_bytes))?;
        let is_negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut wide = if is_negative { [0xff; 8] } else { [0; 8] };
        let fits = wide.get_mut(..bytes.len());
        fits.ok_or_else(|| self.damaged("a number has more than 64 bits"))?
            .copy_from_slice(bytes);
        Ok(Value::Int(i64::from_le_bytes(wide)))
    }

    fn text(&mut self) -> Result<Value<'a>, ModelFileError> {
        let num_bytes = self.number(4)? as usize;
        if num_bytes > MAX_TEXT_BYTES {
            return Err(self.damaged(&format!(
                "a text has {num_bytes} bytes, more than the {MAX_TEXT_BYTES} allowed"
            )));
        }
        let bytes = self.take(num_bytes)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.damaged("a text is not UTF-8"))?;
        Ok(Value::Text(text))
    }

    fn global(&mut self) -> Result<Value<'a>, ModelFileError> {
        let (module, name) = (self.line()?, self.line()?);
        let found = Global::named(module, name);
        found.map(Value::Global).ok_or_else(|| {
            let name = format!("{}.{}", module.escape_ascii(), name.escape_ascii());
            refused(format!(
                "its pickle names {}, which no plain state dict has; nothing of it is run. Save model.state_dict() alone, \
                 or take the model as safetensors",
                clipped(&name)
            ))
        })
    }

    fn line(&mut self) -> Result<&'a [u8], ModelFileError> {
        let rest = &self.bytes[self.at..];
        let rest = &rest[..rest.len().min(MAX_TEXT_BYTES)];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| self.damaged("a name has no end"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), ModelFileError> {
        if self.stack.len() >= MAX_STACK {
            return Err(self.damaged("too many values wait for an instruction"));
        }
        self.stack.push(value);
        Ok(())
    }

    /// Takes the last value behind the last beginning.
    fn pop(&mut self) -> Result<Value<'a>, ModelFileError> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > bottom {
            true => Ok(self.stack.pop().expect("it is longer than its bottom")),
            false => Err(self.damaged("an instruction lacks a value")),
        }
    }

    fn begin(&mut self) -> Result<(), ModelFileError> {
        if self.marks.len() >= MAX_MARKS {
            return Err(self.damaged("too many tuples or dicts are begun within others"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Where on the stack the last beginning was.
    fn end(&mut self) -> Result<usize, ModelFileError> {
        self.marks
            .pop()
            .ok_or_else(|| self.damaged("something ends that has not begun"))
    }

    fn short_tuple(&mut self, len: usize) -> Result<Value<'a>, ModelFileError> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(len).filter(|start| *start >= bottom);
        let start = start.ok_or_else(|| self.damaged("a tuple lacks a value"))?;
        self.tuple_from(start)
    }

    fn tuple_from(&mut self, start: usize) -> Result<Value<'a>, ModelFileError> {
        let first = self.items.len();
        if first + self.stack.len() - start > MAX_VALUES {
            return Err(self.damaged("its tuples have too many values"));
        }
        self.items.extend(self.stack.drain(start..));
        Ok(Value::Tuple(first as u32, self.items.len() as u32))
    }

    fn new_dict(&mut self) -> Result<Value<'a>, ModelFileError> {
        self.num_dicts += 1; // fewer than the pickle has bytes
        Ok(Value::Dict(self.num_dicts))
    }

    /// Python counts what it remembers.
    fn remember(&mut self, is_long: bool) -> Result<(), ModelFileError> {
        let place = self.number(if is_long { 4 } else { 1 })? as usize;
        let value = self.pop()?;
        self.stack.push(value);
        if place < self.remembered.len() {
            self.remembered[place] = value;
            return Ok(());
        }
        if place > self.remembered.len() || place >= MAX_VALUES {
            return Err(self.damaged("it remembers values out of order, or too many"));
        }
        self.remembered.push(value);
        Ok(())
    }

    fn repeated(&mut self, is_long: bool) -> Result<Value<'a>, ModelFileError> {
        let place = self.number(if is_long { 4 } else { 1 })? as usize;
        let found = self.remembered.get(place).copied();
        found.ok_or_else(|| self.damaged("it repeats a value that it did not remember"))
    }

    /// What a dict has beside its entries, such as versions of a module's parts, changes no tensor.
    fn build(&mut self) -> Result<(), ModelFileError> {
        let (_, object) = (self.pop()?, self.pop()?);
        match object {
            Value::Dict(_) => self.push(object),
            _ => Err(self.damaged("something other than a dict has attributes")),
        }
    }

    fn set_one(&mut self) -> Result<(), ModelFileError> {
        let start = self.stack.len().saturating_sub(2);
        if start < self.marks.last().copied().unwrap_or(0) {
            return Err(self.damaged("an entry lacks a key or a value"));
        }
        self.set_from(start)
    }

    fn set_all(&mut self) -> Result<(), ModelFileError> {
        let start = self.end()?;
        self.set_from(start)
    }

    /// Puts the pairs that wait into the dict before them.
    fn set_from(&mut self, start: usize) -> Result<(), ModelFileError> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let (true, Some(Value::Dict(dict))) = (start > bottom, self.stack.get(start.wrapping_sub(1)).copied()) else {
            return Err(self.damaged("entries are put into something other than a dict"));
        };
        let (pairs, rest) = self.stack[start..].as_chunks::<2>();
        if !rest.is_empty() || self.entries.len() + pairs.len() > MAX_TENSORS {
            return Err(self.damaged("a dict has a key without a value, or too many entries"));
        }
        for [key, value] in pairs {
            let Value::Text(key) = key else {
                return Err(self.damaged("a dict has a key that is not a text"));
            };
            self.entries.push((dict, key, *value));
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// What a tensor's numbers are in: `("storage", TYPE, KEY, DEVICE, NUMBER)`.
    fn storage(&mut self) -> Result<Value<'a>, ModelFileError> {
        let named = self.pop()?;
        match self.tuple(named) {
            [
                Value::Text("storage"),
                Value::Global(Global::Storage(kind)),
                Value::Text(key),
                Value::Text(_),
                Value::Int(count),
            ] if *count >= 0 && self.storages.len() < MAX_TENSORS => {
                let (kind, key, num_values) = (*kind, *key, *count as u64);
                self.storages.push(Storage { kind, key, num_values });
                Ok(Value::Storage(self.storages.len() as u32 - 1))
            }
            _ => Err(self.damaged("a storage is not described as torch does, or there are too many")),
        }
    }

    fn call(&mut self) -> Result<Value<'a>, ModelFileError> {
        let (arguments, called) = (self.pop()?, self.pop()?);
        let Value::Global(called) = called else {
            return Err(self.damaged("something is called that has no name"));
        };
        match (called, self.tuple(arguments)) {
            (Global::OrderedDict, []) if matches!(arguments, Value::Tuple(..)) => self.new_dict(),
            (
                Global::RebuildTensor,
                [
                    Value::Storage(storage),
                    Value::Int(offset),
                    Value::Tuple(a, b),
                    Value::Tuple(c, d),
                    Value::Plain,
                    Value::Dict(_),
                ],
            ) if *offset >= 0 && self.tensors.len() < MAX_TENSORS => {
                if b - a != d - c || (b - a) as usize > MAX_DIMS {
                    let (sizes, strides) = (b - a, d - c);
                    let what = format!("a tensor has {sizes} sizes and {strides} strides; {MAX_DIMS} of both are read");
                    return Err(self.damaged(&what));
                }
                let (storage, offset, sizes, strides) = (*storage, *offset as u64, (*a, *b), (*c, *d));
                self.tensors.push(Rebuilt {
                    storage,
                    offset,
                    sizes,
                    strides,
                });
                Ok(Value::Tensor(self.tensors.len() as u32 - 1))
            }
            (Global::RebuildParameter, [tensor @ Value::Tensor(_), Value::Plain, Value::Dict(_)]) => Ok(*tensor),
            _ => Err(self.damaged("a tensor is not described as torch does, or there are too many")),
        }
    }

    /// The values of a tuple; none of another value.
    fn tuple(&self, value: Value<'a>) -> &[Value<'a>] {
        match value {
            Value::Tuple(start, end) => self.within((start, end)),
            _ => &[],
        }
    }

    fn within(&self, (start, end): (u32, u32)) -> &[Value<'a>] {
        &self.items[start as usize..end as usize]
    }

    fn state_dict(&self, top: Value<'a>) -> Result<Vec<(&'a str, StoredTensor<'a>)>, ModelFileError> {
        let Value::Dict(top) = top else {
            return Err(refused("it holds no state dict: expected names and tensors".to_owned()));
        };
        let own = self.entries.iter().filter(|(dict, ..)| *dict == top);
        own.map(|(_, name, value)| Ok((*name, self.tensor(name, *value)?)))
            .collect()
    }

    fn tensor(&self, name: &str, value: Value<'a>) -> Result<StoredTensor<'a>, ModelFileError> {
        let refuse = |problem| refused(format!("the entry {:?} {problem}", clipped(name)));
        let Value::Tensor(tensor) = value else {
            return Err(refuse("is not a tensor; save model.state_dict() alone"));
        };
        let tensor = self.tensors[tensor as usize];
        let (sizes, strides) = (self.within(tensor.sizes), self.within(tensor.strides));
        Ok(StoredTensor {
            storage: self.storages[tensor.storage as usize],
            offset: tensor.offset,
            sizes: counts(sizes).ok_or_else(|| refuse("has a size that is no count"))?,
            strides: counts(strides).ok_or_else(|| refuse("has a stride that is no count"))?,
        })
    }

    fn unknown(&self, instruction: u8) -> ModelFileError {
        let instruction = [instruction].escape_ascii().to_string();
        refused(format!(
            "its pickle has the instruction \"{instruction}\" at byte {}, which no plain state dict has; nothing of it is \
             run. Save model.state_dict() alone, or take the model as safetensors",
            self.at - 1
        ))
    }

    fn damaged(&self, what: &str) -> ModelFileError {
        refused(format!("its pickle cannot be read: {what}, at byte {}", self.at))
    }
}

fn counts(values: &[Value<'_>]) -> Option<Vec<u64>> {
    let count = |value: &Value<'_>| match value {
        Value::Int(count) => u64::try_from(*count).ok(),
        _ => None,
    };
    values.iter().map(count).collect()
}
