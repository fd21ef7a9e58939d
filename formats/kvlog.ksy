meta:
  id: kvlog
  title: kvcodec log and its index sidecar, version 1
  file-extension: kvlog
  license: Apache-2.0
  ks-version: '0.11'
  encoding: UTF-8
  endian: le
doc: |
  A KV cache on an emulated Flash device, and (as the type `sidecar`, which stands for itself) the index beside it. The
  documents that `doc-ref` names define the format; this describes it a second time, for tools, and a test holds the
  two and the program together. Fields bear the names that they have in the documents.

  What this language cannot say, a user of the parser has to add:

  - Checksums are fields like any other. Without them a superblock copy is taken for good if its fields are possible,
    and a frame is taken for one if its magic and the length in its trailer agree.
  - Frames are listed block by block. Blocks of a lane (`data.lane`) have to be sorted by `data.generation`, and only
    frames that continue its chain (`number`, `previous`) belong to the log, or that come behind such as FREED records
    name. Records of both lanes are to be taken by `lsn`, of copies the one in lane KEPT.
  - Whole numbers of 64 bits are assumed. `salted` needs 64 bits without a sign once a generation exceeds 2^31.
  - Records are parsed when `frame.records` is asked for; then what a reader must reject is an error, as far as `valid`
    can tell. Everything above them is lenient.
  - Rows of a STEP or ROWS record are split by the shapes of the sequence's model, which stand in another record:
    `step_rows` are one list, and coded rows bytes, to be parsed as `coded_row`, `sparse_row` or `shaped_row`.
  - Rows over a dictionary end here as indices, coefficients and a scale. The atoms that they name stand in the
    DICTIONARY records of `basis_hash`, which is a hash of them.
  - Rows by product or trellis codes end here as a gain, a shape and bytes of codes. What these name stands in the
    CODEBOOK records of `basis_hash`, whose bodies, joined by `first_byte`, are to be parsed as `product` or `trellis`,
    as their `form` says. That bits of trellis codes which are no component's are 0 is for a user to see.
doc-ref:
  - formats/README.md
  - formats/device.md

seq:
  - id: superblocks
    type: superblock
    size: 4096
    repeat: expr
    repeat-expr: 2
  - id: blocks
    type: block(_index)
    size: '_io.size - _io.pos < stride ? _io.size - _io.pos : stride'
    repeat: expr
    repeat-expr: present_blocks
    doc: As many as the file reaches into; it may end anywhere, and what it does not hold is not programmed.

instances:
  geometry:
    value: 'superblocks[0].is_possible ? superblocks[0] : superblocks[1]'
  units_per_block:
    value: geometry.block_bytes / geometry.unit_bytes
  spare_area:
    value: (16 * units_per_block + 4095) / 4096 * 4096
  stride:
    value: spare_area + (geometry.block_bytes + 4095) / 4096 * 4096
  reached_blocks:
    value: (_io.size - 8192 + stride - 1) / stride
  present_blocks:
    value: 'reached_blocks < geometry.blocks ? reached_blocks : geometry.blocks'

types:
  zeros:
    doc: Padding, or a reserved field.
    params:
      - id: count
        type: s8
    seq:
      - id: zeros
        size: count
        valid:
          expr: count == 0 or _.max == 0

  # -- device ----------------------------------------------------------------------------------------------------

  superblock:
    doc-ref: formats/device.md#superblock
    seq:
      - id: magic
        size: 8
      - id: version
        type: u2
      - id: copy
        type: u2
      - id: byte_order
        type: u4
      - id: uuid
        size: 16
      - id: page_bytes
        type: u4
      - id: unit_bytes
        type: u4
      - id: block_bytes
        type: u4
      - id: blocks
        type: u4
      - id: rated_cycles
        type: u4
      - id: read_ns
        type: u4
      - id: program_ns
        type: u4
      - id: erase_ns
        type: u4
      - id: name
        type: str
        size: 16
        pad-right: 0
      - id: reserved
        size: 44
      - id: crc
        type: u4
        doc: Of bytes 0 to 123.
      - id: padding
        size-eos: true
    instances:
      is_possible:
        value: >-
          magic == [0x89, 0x4b, 0x56, 0x4c, 0x4f, 0x47, 0x0d, 0x0a] and version == 1 and byte_order == 0x0a0b0c0d
          and unit_bytes >= 64 and unit_bytes <= 65528 and unit_bytes % 8 == 0
          and page_bytes > 0 and page_bytes % unit_bytes == 0
          and block_bytes >= 2 * unit_bytes and block_bytes <= 0x40000000 and block_bytes % page_bytes == 0
          and blocks > 0 and rated_cycles > 0
        doc: All that a copy can show without its checksum.

  block:
    doc: Spare slots, then data; each padded to a multiple of 4096 in the file.
    doc-ref: formats/device.md
    params:
      - id: number
        type: u4
    seq:
      - id: slots
        type: spare_slot
        repeat: expr
        repeat-expr: 'held_slots < _root.units_per_block ? held_slots : _root.units_per_block'
      - id: spare_padding
        size: '(_io.size < _root.spare_area ? _io.size : _root.spare_area) - _io.pos'
      - id: data
        type: block_data
        size: 'held_data < _root.geometry.block_bytes ? held_data : _root.geometry.block_bytes'
        if: held_data >= 64
      - id: padding
        size-eos: true
    instances:
      held_slots:
        value: _io.size / 16
      held_data:
        value: '_io.size < _root.spare_area ? 0 : _io.size - _root.spare_area'

  spare_slot:
    doc-ref: formats/device.md#spare-slot
    seq:
      - id: crc
        type: u4
        doc: Of the rest of the slot, seeded with the unit, seeded with the place.
      - id: first_frame
        type: u2
        doc: 0xFFFF if no frame begins in the unit.
      - id: lane
        type: u2
        enum: lane
      - id: generation
        type: u8
    instances:
      is_programmed:
        value: crc != 0 or first_frame != 0 or lane.to_i != 0 or generation != 0
        doc: Provided that the file holds all bytes of the unit.

  block_data:
    doc: All offsets in a block, and all alignment, count from here.
    doc-ref: formats/frame.md#alignment
    seq:
      - id: header
        type: block_header
        size: '_io.size < _root.geometry.unit_bytes ? _io.size : _root.geometry.unit_bytes'
      - id: places
        type: place(_io.pos)
        repeat: until
        repeat-until: _io.eof
        if: not _io.eof
    instances:
      generation:
        value: >-
          is_header_good ? header.generation : _parent.slots[1].generation
        doc: 0 if the block is erased.
      lane:
        value: 'is_header_good ? header.lane : _parent.slots[1].lane'
        doc-ref: formats/frame.md#lanes
      is_header_good:
        value: header.generation == _parent.slots[0].generation
        doc: |
          A header that its own slot contradicts is damaged; the next unit then knows. A reader tells damage by the
          checksums, and looks further than unit 1.
      salted:
        value: (0x4b46524d + generation * 0x9e3779b1) & 0xffffffff
      frame_magic:
        value: 'salted == 0 or salted == 0xffffffff ? 0x4b46524d : salted'
        doc: So a frame of an earlier life of the block is not one.
        doc-ref: formats/frame.md#header-and-trailer

  block_header:
    doc: Unit 0 of a block in use.
    doc-ref: formats/device.md#block-header
    seq:
      - id: magic
        type: u4
        doc: 0x4B4C424B
      - id: block
        type: u4
      - id: generation
        type: u8
      - id: erase_count
        type: u8
      - id: programmed_bytes
        type: u8
      - id: host_bytes
        type: u8
      - id: framed_bytes
        type: u8
      - id: compacted_bytes
        type: u8
      - id: lane
        type: u1
        enum: lane
      - id: reserved
        size: 3
      - id: crc
        type: u4
        doc: Of bytes 0 to 59.
      - id: padding
        size-eos: true

  place:
    doc: |
      A frame, or what is passed over to where the next one may begin: the next unit, or the byte in this unit that its
      slot names. Passed over are the padding of a sync, which is zeros, the gap that a crash left, and a torn tail.
    doc-ref:
      - formats/frame.md#the-chain
      - formats/frame.md#recovery
    params:
      - id: offset
        type: u4
    seq:
      - id: frame
        type: frame(offset)
        if: is_frame
      - id: passed_over
        size: 'to_next < _io.size - offset ? to_next : _io.size - offset'
        if: not is_frame
    instances:
      magic:
        pos: offset
        type: u4
        if: offset + 64 <= _io.size
      length:
        pos: offset + 8
        type: u4
        if: offset + 64 <= _io.size
      fits:
        value: >-
          offset + 64 <= _io.size and magic == _parent.frame_magic
          and length >= 64 and length % 8 == 0 and offset + length <= _io.size
      trailing_length:
        pos: offset + length - 8
        type: u4
        if: fits
      is_frame:
        value: fits and trailing_length == length
      in_unit:
        value: offset % _root.geometry.unit_bytes
      first_frame:
        value: _parent._parent.slots[offset / _root.geometry.unit_bytes].first_frame
      to_next:
        value: >-
          in_unit == 0 and first_frame > 0 and first_frame < _root.geometry.unit_bytes
          ? first_frame : _root.geometry.unit_bytes - in_unit

  # -- frames ----------------------------------------------------------------------------------------------------

  frame:
    doc-ref: formats/frame.md
    params:
      - id: offset
        type: u4
    seq:
      - id: header
        type: frame_header
      - id: contents
        size: header.length - 64
      - id: trailer
        type: frame_trailer
    instances:
      end:
        value: offset + header.length
      records:
        pos: offset + 56
        type: frame_records(header.records, end - 8)
        if: header.type == frame_type::data or header.type == frame_type::compaction
        doc: Parsed when asked for, since a checksum should be looked at before. A frame of another type has none.

  frame_header:
    doc-ref: formats/frame.md#header-and-trailer
    seq:
      - id: magic
        type: u4
      - id: version
        type: u1
      - id: type
        type: u1
        enum: frame_type
      - id: flags
        type: u2
      - id: length
        type: u4
      - id: records
        type: u4
      - id: number
        type: u8
      - id: durable
        type: u8
      - id: session_start
        type: u8
      - id: session
        type: u4
      - id: previous
        type: u4
      - id: drops
        type: u4
        doc: DROP records in the frames of the lane before this one, modulo 2^32.
      - id: header_crc
        type: u4
        doc: Of bytes 0 to 51, seeded with the checksum of the uuid.

  frame_trailer:
    doc-ref: formats/frame.md#header-and-trailer
    seq:
      - id: length
        type: u4
      - id: crc
        type: u4
        doc: Of all bytes of the frame before this field, seeded with the checksum of the uuid.

  frame_records:
    params:
      - id: count
        type: u4
      - id: trailer_at
        type: u4
    seq:
      - id: places
        type: record_place(_io.pos)
        repeat: expr
        repeat-expr: count
      - id: padding
        type: zeros(trailer_at - _io.pos)

  record_place:
    doc: A record, at the next multiple of 8, or if the kind there is zero, of 64.
    doc-ref: formats/frame.md#alignment
    params:
      - id: behind
        type: u4
    seq:
      - id: gap
        type: zeros(offset - behind)
      - id: record
        type: record
        valid:
          expr: >-
            _.header.kind != record_kind::group and _.header.kind != record_kind::dictionary
            and _.header.kind != record_kind::codebook or offset % 64 == 0
    instances:
      loose:
        value: (behind + 7) / 8 * 8
      kind_at_loose:
        pos: loose + 4
        type: u1
      offset:
        value: 'kind_at_loose != 0 ? loose : (behind + 63) / 64 * 64'

  # -- records ---------------------------------------------------------------------------------------------------

  record:
    doc-ref: formats/record.md
    seq:
      - id: header
        type: record_header
      - id: body
        size: header.body_bytes
        type:
          switch-on: header.kind
          cases:
            'record_kind::model': model_body(header.fields.as<model_fields>)
            'record_kind::sequence': sequence_body(header.fields.as<sequence_fields>)
            'record_kind::group': group_body(header.fields.as<group_fields>)
            'record_kind::step': step_body(header.fields.as<step_fields>)
            'record_kind::dictionary': dictionary_body(header.fields.as<dictionary_fields>)
            'record_kind::rows': step_body(header.fields.as<step_fields>)
            'record_kind::freed': freed_body(header.fields.as<freed_fields>)
            'record_kind::retired': retired_body(header.fields.as<retired_fields>)
        doc: That of DROP is empty; that of CODEBOOK, and of a kind which is skipped, is bytes.

  record_header:
    doc-ref: formats/record.md#common-header
    seq:
      - id: header_crc
        type: u4
        doc: Of the header from byte 4 on.
      - id: kind
        type: u1
        enum: record_kind
        valid:
          expr: _.to_i >= 0x80 and _.to_i != 0xff or _.to_i >= 1 and _.to_i <= 9
      - id: version
        type: u1
        valid: 1
      - id: header_bytes
        type: u2
        valid:
          min: 32
      - id: body_bytes
        type: u4
      - id: body_crc
        type: u4
        doc: Of the body.
      - id: lsn
        type: u8
      - id: sequence
        type: u8
        valid:
          expr: >-
            kind == record_kind::model or kind == record_kind::dictionary or kind == record_kind::codebook
            or kind == record_kind::freed or kind == record_kind::retired ? _ == 0 : kind != record_kind::drop or _ > 0
      - id: fields
        size: 'header_bytes - 32 < _io.size - _io.pos ? header_bytes - 32 : _io.size - _io.pos'
        type:
          switch-on: kind
          cases:
            'record_kind::model': model_fields
            'record_kind::sequence': sequence_fields
            'record_kind::group': group_fields
            'record_kind::step': step_fields(false)
            'record_kind::dictionary': dictionary_fields
            'record_kind::drop': drop_fields
            'record_kind::rows': step_fields(true)
            'record_kind::codebook': codebook_fields
            'record_kind::freed': freed_fields
            'record_kind::retired': retired_fields
        doc: Those of the kind. A sidecar holds no more than 128 bytes of a header, so there the rest may be missing.

  model_fields:
    doc-ref: formats/record.md#model
    seq:
      - id: model_hash
        size: 16
      - id: fingerprint
        size: 32
      - id: dtype
        type: u1
        enum: dtype_id
        valid:
          in-enum: true
      - id: rope_layout
        type: u1
        enum: rope_layout
        valid:
          in-enum: true
      - id: layers
        type: u2
        valid:
          min: 1
          max: 4096
      - id: name_bytes
        type: u2
        valid:
          max: 255
      - id: shard
        type: u2
      - id: shards
        type: u2
        valid:
          expr: shard < _
      - id: reserved
        type: zeros(6)

  model_body:
    params:
      - id: fields
        type: model_fields
    seq:
      - id: layers
        type: model_layer
        repeat: expr
        repeat-expr: fields.layers
      - id: name
        type: str
        size: fields.name_bytes

  model_layer:
    doc-ref: formats/record.md#model
    seq:
      - id: first_stream
        type: u1
        enum: stream_id
        doc: 0 if there is none.
      - id: second_stream
        type: u1
        enum: stream_id
      - id: first_heads
        type: u2
      - id: first_dim
        type: u2
      - id: second_heads
        type: u2
      - id: second_dim
        type: u2
      - id: reserved
        type: u2
        valid: 0
      - id: window
        type: u4
      - id: rope_base
        type: f8
      - id: rope_scale
        type: f8

  sequence_fields:
    doc-ref: formats/record.md#sequence
    seq:
      - id: model_hash
        size: 16
      - id: parent
        type: u8
        valid:
          expr: _ == 0 or _ < _parent.sequence
      - id: fork_token
        type: u8
        valid:
          expr: '_ <= (parent == 0 ? 0 : 0x1000000000000)'
      - id: name_bytes
        type: u2
        valid:
          max: 1024
      - id: policies
        type: u2
      - id: reserved
        type: zeros(28)

  sequence_body:
    params:
      - id: fields
        type: sequence_fields
    seq:
      - id: policies
        type: policy
        repeat: expr
        repeat-expr: fields.policies
      - id: name
        type: str
        size: fields.name_bytes

  policy:
    doc-ref: formats/record.md#sequence
    seq:
      - id: stream
        type: u1
        enum: stream_id
        valid:
          in-enum: true
      - id: codec
        type: u1
        enum: codec_id
        valid:
          in-enum: true
      - id: axis
        type: u1
        enum: axis
        valid:
          expr: >-
            codec == codec_id::raw ? _ == axis::none
            : codec.to_i >= 5 ? _ == axis::token
            : _ == axis::channel or _ == axis::token
      - id: flags
        type: u1
        valid:
          expr: >-
            (_ & (codec == codec_id::raw ? 0 : codec.to_i > 5 ? 4 : codec.to_i == 5 ? 6 : 1)) == _
      - id: group
        type: u2
        valid:
          expr: >-
            codec == codec_id::raw ? _ == 0
            : _ >= 16 and _ <= 4096
            and _ % (codec.to_i >= 5 ? 64 : 16) == 0
      - id: first_layer
        type: u2
      - id: layers
        type: u2
      - id: reserved
        type: u2
        valid: 0
      - id: residual
        type: u4
        valid:
          max: 0x7fffffff
      - id: sinks
        type: u4
        valid:
          max: 0x7fffffff
      - id: reserved_too
        type: u4
        valid: 0
      - id: sparse
        type: sparse_fields(codec, flags)
      - id: reserved_sparse
        type: zeros(7)

  sparse_fields:
    doc: |
      How rows are coded over a dictionary, and which, in GROUP, ROWS and POLICY: six fields that stand in the struct
      itself there. By product or trellis codes the first two say which, and `dictionary_atoms` how many bytes they
      take; but for `error_bound` the others are 0 there. All are 0 with other codecs.
    doc-ref:
      - formats/record.md#group
      - formats/dictionary.md#a-row
    params:
      - id: codec
        type: u1
        enum: codec_id
      - id: flags
        type: u2
    seq:
      - id: basis_hash
        size: 16
        valid:
          expr: (_.max != 0) == (is_used or is_shaped)
      - id: dictionary_atoms
        type: u4
        valid:
          expr: >-
            is_used ? _ >= 1 and _ <= 65536
            : is_shaped ? _ >= 1 and _ <= (codec == codec_id::product ? 128 : 512) : _ == 0
      - id: error_bound
        type: u2
        valid:
          expr: '_ <= (is_used or is_shaped and is_bounded ? 0x7fff : 0) and (_ > 0 or not is_bounded)'
      - id: atoms
        type: u1
        valid:
          expr: 'is_used ? _ >= 1 and _ <= 32 : _ == 0'
      - id: low_atoms
        type: u1
        valid:
          expr: 'is_used ? _ < atoms : _ == 0'
      - id: coefficient_bits
        type: u1
        valid:
          expr: 'is_used ? _ == 4 or _ == 5 or _ == 6 or _ == 8 : _ == 0'
    instances:
      is_used:
        value: codec == codec_id::dictionary
      is_shaped:
        value: codec == codec_id::product or codec == codec_id::trellis
      has_sets:
        value: (flags & 2) != 0
      is_bounded:
        value: (flags & 4) != 0
        doc: No row errs by more than `error_bound`; some of a GROUP record may be INT4 or raw.
      low_set:
        pos: 0
        type: set_shape(dictionary_atoms, low_atoms)
        doc: The first tier, with two of them.
      high_set:
        pos: 0
        type: set_shape(dictionary_atoms, atoms - low_atoms)
        doc: The second tier, or the only one.
      set_bytes:
        value: low_set.bytes + high_set.bytes
      coefficient_bytes:
        value: (atoms * coefficient_bits + 7) / 8

  set_shape:
    doc-ref: formats/dictionary.md#sets
    params:
      - id: below
        type: u4
        doc: All numbers of the set are.
      - id: count
        type: u1
    instances:
      low_bits:
        value: >-
          count == 0 ? 0
          : (2 * count <= below ? 1 : 0) + (4 * count <= below ? 1 : 0)
          + (8 * count <= below ? 1 : 0) + (16 * count <= below ? 1 : 0)
          + (32 * count <= below ? 1 : 0) + (64 * count <= below ? 1 : 0)
          + (128 * count <= below ? 1 : 0) + (256 * count <= below ? 1 : 0)
          + (512 * count <= below ? 1 : 0) + (1024 * count <= below ? 1 : 0)
          + (2048 * count <= below ? 1 : 0) + (4096 * count <= below ? 1 : 0)
          + (8192 * count <= below ? 1 : 0) + (16384 * count <= below ? 1 : 0)
          + (32768 * count <= below ? 1 : 0) + (65536 * count <= below ? 1 : 0)
        doc: Of each number; the logarithm of below / count, rounded down, or 0.
      unary_at:
        value: count * low_bits
        doc: The bit that the unary part begins with.
      bytes:
        value: 'count == 0 ? 0 : (unary_at + count + ((below - 1) >> low_bits) + 7) / 8'

  group_fields:
    doc-ref: formats/record.md#group
    seq:
      - id: codec
        type: u1
        enum: codec_id
        valid:
          in-enum: true
      - id: stream
        type: u1
        enum: stream_id
        valid:
          in-enum: true
      - id: axis
        type: u1
        enum: axis
        valid:
          expr: >-
            codec == codec_id::raw ? _ == axis::none
            : codec.to_i >= 5 ? _ == axis::token
            : _ == axis::channel or _ == axis::token
      - id: transform
        type: u1
        enum: transform
        valid: transform::none
      - id: flags
        type: u2
        valid:
          expr: >-
            (_ & (codec == codec_id::raw ? 0 : codec.to_i > 5 ? 4 : codec.to_i == 5 ? 6 : 1)) == _
      - id: group
        type: u2
        valid:
          expr: >-
            codec == codec_id::raw ? _ == 0
            : _ >= 16 and _ <= 4096
            and _ % (codec.to_i >= 5 ? 64 : 16) == 0
      - id: first_layer
        type: u2
      - id: layers
        type: u2
        valid: 1
      - id: first_head
        type: u2
      - id: heads
        type: u2
        valid:
          min: 1
      - id: head_dim
        type: u2
        valid:
          min: 1
      - id: all_heads
        type: u2
        valid:
          expr: first_head + heads <= _
      - id: tokens
        type: u4
        valid:
          min: 1
      - id: first_token
        type: u8
        valid:
          expr: _ + tokens <= 0x1000000000000
      - id: rows
        type: u4
        valid:
          eq: tokens
      - id: error_bytes
        type: u4
        valid:
          eq: (2 * heads + 63) / 64 * 64
      - id: bitmap_bytes
        type: u4
        valid:
          expr: _ == 0 or (flags & 4) != 0 and _ == (heads * ((tokens + 3) / 4) + 63) / 64 * 64
      - id: position_bytes
        type: u4
        valid:
          expr: _ == 0 or codec == codec_id::raw and _ == (16 * rows + 63) / 64 * 64
      - id: metadata_bytes
        type: u4
        valid:
          expr: codec.to_i < 5 or _ == (tokens + 63) / 64 * 128
      - id: code_bytes
        type: u4
      - id: sparse
        type: sparse_fields(codec, flags)
      - id: reserved
        type: zeros(15)
    instances:
      is_symmetric:
        value: (flags & 1) != 0
      is_channel_lane:
        value: stream == stream_id::v
        doc: The stream picks the tile, whatever the axis.
        doc-ref: formats/grouped-integers.md#tiles
      padded_dim:
        value: (head_dim + 15) / 16 * 16
      padded_tokens:
        value: 'is_channel_lane ? (tokens + 63) / 64 * 64 : (tokens + 15) / 16 * 16'

  group_body:
    doc: One codec for all heads; another one is one more case here and in `codec_id`.
    doc-ref: formats/record.md#group
    params:
      - id: shape
        type: group_fields
    seq:
      - id: errors
        type: u2
        repeat: expr
        repeat-expr: shape.heads
        doc: Relative error of each head's rows, in 1/32768.
      - id: padding
        type: zeros(shape.error_bytes - 2 * shape.heads)
      - id: positions
        type: row_positions(shape)
        size: shape.position_bytes
        if: shape.position_bytes != 0
      - id: bitmap
        type: row_bitmap(shape)
        size: shape.bitmap_bytes
        if: shape.bitmap_bytes != 0
      - id: heads
        size: shape.metadata_bytes + shape.code_bytes
        type:
          switch-on: shape.codec
          cases:
            'codec_id::raw': raw_head(shape)
            'codec_id::int8': grouped_head(shape, 8)
            'codec_id::int4': grouped_head(shape, 4)
            'codec_id::int2': grouped_head(shape, 2)
            'codec_id::dictionary': sparse_head(shape, _index)
            'codec_id::product': shaped_head(shape)
            'codec_id::trellis': shaped_head(shape)
        repeat: expr
        repeat-expr: shape.heads
      - id: others
        type: other_rows(shape)
        size-eos: true
        if: shape.bitmap_bytes != 0
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0

  row_positions:
    doc: |
      Of the rows of a summary where each stands, and the first position that may see it. That these lie in its range is
      to be checked once the DROP record is known.
    doc-ref: formats/record.md#summaries
    params:
      - id: shape
        type: group_fields
    seq:
      - id: rows
        type: row
        repeat: expr
        repeat-expr: shape.rows
      - id: padding
        type: zeros(_io.size - _io.pos)
    types:
      row:
        seq:
          - id: position
            type: u8
            valid:
              max: 0xffffffffffff
          - id: visible_from
            type: u8
            valid:
              expr: _ >= position and _ <= 0x1000000000000

  row_bitmap:
    meta:
      bit-endian: le
    doc: What each row is kept as.
    doc-ref: formats/dictionary.md#bound
    params:
      - id: shape
        type: group_fields
    seq:
      - id: heads
        type: head
        size: (shape.tokens + 3) / 4
        repeat: expr
        repeat-expr: shape.heads
      - id: padding
        type: zeros(_io.size - _io.pos)
    types:
      head:
        seq:
          - id: kinds
            type: b2
            enum: row_kind
            repeat: expr
            repeat-expr: _parent.shape.tokens
            valid:
              in-enum: true
          - id: padding
            type: b2
            repeat: expr
            repeat-expr: (4 - _parent.shape.tokens % 4) % 4
            valid: 0

  other_rows:
    doc: The rows that are not codes, `heads[h].rows[t]`; of one that is codes, nothing.
    doc-ref: formats/dictionary.md#bound
    params:
      - id: shape
        type: group_fields
    seq:
      - id: heads
        type: head(_index)
        repeat: expr
        repeat-expr: shape.heads
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0 and _io.size > 0
        doc: Without any row that is not codes there would be no bitmap.
    instances:
      body:
        value: _parent
    types:
      head:
        params:
          - id: number
            type: u2
        seq:
          - id: rows
            type: row(_parent.body.bitmap.heads[number].kinds[_index])
            repeat: expr
            repeat-expr: _parent.shape.tokens
        instances:
          dim:
            value: _parent.shape.head_dim
      row:
        params:
          - id: kind
            type: u1
            enum: row_kind
        seq:
          - id: int4
            type: coded_row(codec_id::int4, 32, false, _parent.dim)
            if: kind == row_kind::int4
          - id: raw
            type: u2
            repeat: expr
            repeat-expr: _parent.dim
            if: kind == row_kind::raw
            doc: The bits of 16-bit floats.

  raw_head:
    doc-ref: formats/raw.md#group
    params:
      - id: shape
        type: group_fields
    seq:
      - id: rows
        type: row
        repeat: expr
        repeat-expr: shape.tokens
      - id: padding
        type: zeros(_io.size - _io.pos)
    types:
      row:
        doc: One token's numbers, the bits of 16-bit floats.
        seq:
          - id: numbers
            type: u2
            repeat: expr
            repeat-expr: _parent.shape.head_dim

  grouped_head:
    doc: |
      Codes of `bits` bits, and a scale and a zero for each group of them: a number is scale * (code + zero / parts).
    doc-ref: formats/grouped-integers.md#sections
    params:
      - id: shape
        type: group_fields
      - id: bits
        type: u1
    seq:
      - id: scales
        type: scale_table(table_rows * lanes)
        size: 'shape.is_symmetric ? shape.metadata_bytes : shape.metadata_bytes / 2'
      - id: zeros
        type: zero_table(table_rows * lanes)
        size: shape.metadata_bytes / 2
        if: not shape.is_symmetric
      - id: tile_rows
        type: tile_row
        repeat: expr
        repeat-expr: shape.padded_tokens * shape.padded_dim * bits / 8 / 64
      - id: padding
        type: zeros(_io.size - _io.pos)
    instances:
      parts:
        value: 'bits == 8 ? 2 : 16'
        doc: Of a step, which zeros are counted in.
      is_per_channel:
        value: shape.axis == axis::channel
      table_rows:
        value: '((is_per_channel ? shape.tokens : shape.head_dim) + shape.group - 1) / shape.group'
      lanes:
        value: 'is_per_channel ? shape.padded_dim : shape.padded_tokens'
        doc: Columns of the tables; those beyond the last token or channel are padding.
      codes_per_lane:
        value: 32 / bits
        doc: Of a tile row.
      tokens:
        pos: 0
        type: coded_token(_index)
        repeat: expr
        repeat-expr: shape.tokens
        doc: The same once more by token and channel, `tokens[t].channels[c]`, without padding.

  scale_table:
    params:
      - id: count
        type: u4
    seq:
      - id: numbers
        type: u2
        repeat: expr
        repeat-expr: count
        doc: Bits of bfloat16, the upper half of a binary32.
      - id: padding
        type: zeros(_io.size - _io.pos)

  zero_table:
    params:
      - id: count
        type: u4
    seq:
      - id: numbers
        type: s2
        repeat: expr
        repeat-expr: count
        doc: In parts of a step.
      - id: padding
        type: zeros(_io.size - _io.pos)

  tile_row:
    doc: 16 lanes of 4 bytes.
    doc-ref: formats/grouped-integers.md#tiles
    seq:
      - id: lanes
        type: u4
        repeat: expr
        repeat-expr: 16

  coded_token:
    params:
      - id: token
        type: u4
    seq:
      - id: channels
        type: coded_number(token, _index)
        repeat: expr
        repeat-expr: head.shape.head_dim
    instances:
      head:
        value: _parent

  coded_number:
    doc: |
      In a token-lane tile (K, C, KR) the lanes are 16 tokens, and its rows go on along the channels; in a channel-lane
      tile (V) the lanes are 16 channels, and its rows go on along 64 tokens. Code i of a lane lies in byte i mod 4.
    doc-ref:
      - formats/grouped-integers.md#tiles
      - formats/grouped-integers.md#groups
    params:
      - id: token
        type: u4
      - id: channel
        type: u4
    instances:
      head:
        value: _parent.head
      shape:
        value: head.shape
      along:
        value: 'shape.is_channel_lane ? token : channel'
      lane:
        value: '(shape.is_channel_lane ? channel : token) % 16'
      rows_before:
        value: >-
          shape.is_channel_lane
          ? (token / 64 * (shape.padded_dim / 16) + channel / 16) * (64 / head.codes_per_lane)
          : token / 16 * (shape.padded_dim / head.codes_per_lane)
        doc: Tile rows of the tiles before this one.
      row:
        value: >-
          rows_before + (shape.is_channel_lane ? token % 64 : channel) / head.codes_per_lane
      in_lane:
        value: along % head.codes_per_lane
      code:
        value: >-
          (head.tile_rows[row].lanes[lane] >> (in_lane % 4 * 8 + in_lane / 4 * head.bits)) & ((1 << head.bits) - 1)
      table_index:
        value: >-
          head.is_per_channel ? token / shape.group * head.lanes + channel : channel / shape.group * head.lanes + token
      scale:
        value: head.scales.numbers[table_index]
      zero:
        value: 'shape.is_symmetric ? -head.parts * (1 << (head.bits - 1)) : head.zeros.numbers[table_index]'

  sparse_head:
    doc: |
      Rows over a dictionary: mean + scale * (sum of coefficients times atoms), `tokens[t].scale` and
      `tokens[t].vector.terms[j]` of each, turned to its position. The atoms, the mean, and by how much rows turn, stand
      in DICTIONARY records. A row whose `kind` is not codes stands in `group_body.others`, and is zeros here.
    doc-ref:
      - formats/dictionary.md#sections
      - formats/dictionary.md#bound
    params:
      - id: shape
        type: group_fields
      - id: number
        type: u2
        doc: Of the head, in this record.
    seq:
      - id: scales
        type: u2
        repeat: expr
        repeat-expr: 64 * ((shape.tokens + 63) / 64)
        valid:
          max: 0x7f7f
        doc: Bits of bfloat16, the upper half of a binary32. Those beyond the last token are padding.
      - id: blocks
        type: sparse_block(shape.sparse, 64)
        repeat: expr
        repeat-expr: (shape.tokens + 63) / 64
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0
    instances:
      body:
        value: _parent
      tokens:
        pos: 0
        type: token(_index)
        repeat: expr
        repeat-expr: shape.tokens
    types:
      token:
        params:
          - id: number
            type: u4
        instances:
          head:
            value: _parent
          kind:
            value: >-
              head.shape.bitmap_bytes == 0 ? row_kind::codes : head.body.bitmap.heads[head.number].kinds[number]
          scale:
            value: head.scales[number]
          vector:
            value: head.blocks[number / 64].vectors[number % 64]
          unused:
            pos: 0
            type: unused_term(_index)
            repeat: expr
            repeat-expr: 'kind == row_kind::codes ? 0 : head.shape.sparse.atoms'
            valid:
              expr: scale == 0 and _.index == 0 and _.coefficient == 0
            doc: Those of a row that is kept otherwise, for a user who minds what nobody needs.
      unused_term:
        params:
          - id: place
            type: u1
        instances:
          index:
            value: _parent.vector.terms[place].index
          coefficient:
            value: _parent.vector.terms[place].coefficient

  sparse_row:
    doc: |
      One head of one token in a ROWS record; the next one follows at once, in the order that `step_rows` has. A user
      makes these, one after the other, of the bytes of `step_body.rows`.
    doc-ref: formats/dictionary.md#a-row
    params:
      - id: codes
        type: sparse_fields
    seq:
      - id: scale
        type: u2
        valid:
          max: 0x7f7f
        doc: Bits of bfloat16, the upper half of a binary32.
      - id: block
        type: sparse_block(codes, 1)
    instances:
      vector:
        value: block.vectors[0]

  shaped_head:
    doc: |
      Rows by product or trellis codes: `tokens[t]` has the numbers of its gain and of its shape, and of a centroid for
      each group, or bytes of bits. What they stand for is in `product` or `trellis`.
    doc-ref:
      - formats/product.md#sections
      - formats/trellis.md#sections
    params:
      - id: shape
        type: group_fields
    seq:
      - id: sides
        type: side_block
        repeat: expr
        repeat-expr: (shape.tokens + 63) / 64
      - id: blocks
        type: code_block
        repeat: expr
        repeat-expr: (shape.tokens + 63) / 64
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0
    instances:
      tokens:
        pos: 0
        type: token(_index)
        repeat: expr
        repeat-expr: shape.tokens
    types:
      side_block:
        seq:
          - id: gains
            type: u1
            repeat: expr
            repeat-expr: 64
          - id: shapes
            type: u1
            repeat: expr
            repeat-expr: 64
            valid:
              max: 15
      code_block:
        seq:
          - id: planes
            size: 64
            repeat: expr
            repeat-expr: _parent.shape.sparse.dictionary_atoms
            doc: Code of group k, or byte k of the bits, of each row.
      token:
        params:
          - id: number
            type: u4
        instances:
          head:
            value: _parent
          gain:
            value: head.sides[number / 64].gains[number % 64]
          shape:
            value: head.sides[number / 64].shapes[number % 64]
          codes:
            pos: 0
            type: code(_index)
            repeat: expr
            repeat-expr: head.shape.sparse.dictionary_atoms
      code:
        params:
          - id: group
            type: u1
        instances:
          token:
            value: _parent
          number:
            value: token.head.blocks[token.number / 64].planes[group][token.number % 64]

  shaped_row:
    doc: |
      One head of one token in a ROWS record by product or trellis codes; the next one follows at once, in the order that
      `step_rows` has. A user makes these, one after the other, of the bytes of `step_body.rows`.
    doc-ref:
      - formats/product.md#a-row
      - formats/trellis.md#a-row
    params:
      - id: codes_of
        type: sparse_fields
    seq:
      - id: gain
        type: u1
      - id: shape
        type: u1
        valid:
          max: 15
      - id: codes
        type: u1
        repeat: expr
        repeat-expr: codes_of.dictionary_atoms

  sparse_block:
    doc: Indices and coefficients of `count` rows, field by field; of one where a row stands by itself.
    doc-ref:
      - formats/dictionary.md#a-row
      - formats/dictionary.md#sections
    params:
      - id: codes
        type: sparse_fields
      - id: count
        type: u1
    seq:
      - id: indices
        type: index_plane
        repeat: expr
        repeat-expr: 'codes.has_sets ? 0 : codes.atoms'
      - id: sets
        size: count
        repeat: expr
        repeat-expr: 'codes.has_sets ? codes.set_bytes : 0'
        doc: Byte k of the sets of each row; with two tiers the second set has bytes of its own behind the first one.
      - id: coefficients
        size: count
        repeat: expr
        repeat-expr: codes.coefficient_bytes
        doc: Byte k of the coefficients of each row.
    instances:
      vectors:
        pos: 0
        type: sparse_vector(_index)
        repeat: expr
        repeat-expr: count
        doc: The same once more by row.
    types:
      index_plane:
        doc: Index j of each row.
        seq:
          - id: numbers
            type: u2
            repeat: expr
            repeat-expr: _parent.count

  sparse_vector:
    doc-ref: formats/dictionary.md#a-row
    params:
      - id: row
        type: u1
        doc: Of the block.
    instances:
      block:
        value: _parent
      codes:
        value: block.codes
      low_set:
        pos: 0
        type: index_set(codes.low_set, 0)
        doc: The first tier, with two of them.
      high_set:
        pos: 0
        type: index_set(codes.high_set, codes.low_set.bytes)
        doc: The second tier, or the only one.
      terms:
        pos: 0
        type: term(_index)
        repeat: expr
        repeat-expr: codes.atoms
        valid:
          expr: _.index < codes.dictionary_atoms
    types:
      term:
        params:
          - id: place
            type: u1
        instances:
          vector:
            value: _parent
          codes:
            value: vector.codes
          index:
            value: >-
              not codes.has_sets ? vector.block.indices[place].numbers[vector.row]
              : place < codes.low_atoms ? vector.low_set.members[place].number
              : vector.high_set.members[place - codes.low_atoms].number
          first_bit:
            value: place * codes.coefficient_bits
          first_byte:
            value: first_bit / 8
          both_bytes:
            value: >-
              vector.block.coefficients[first_byte][vector.row]
              + (first_byte + 1 < codes.coefficient_bytes
              ? 256 * vector.block.coefficients[first_byte + 1][vector.row] : 0)
          half:
            value: 1 << (codes.coefficient_bits - 1)
          coefficient:
            value: ((both_bytes >> (first_bit % 8)) + half) % (2 * half) - half
            doc: Two's complement of so many bits.

  index_set:
    doc: |
      Elias and Fano's code of numbers that do not descend, decoded here. Bits count from the lowest one of byte 0 on.
      What stands behind the last number has no place in any of them, so a user who minds asks for `rest`.
    doc-ref: formats/dictionary.md#sets
    params:
      - id: shape
        type: set_shape
      - id: first_byte
        type: u2
    instances:
      vector:
        value: _parent
      members:
        pos: 0
        type: 'member(_index, _index == 0 ? shape.unary_at : members[_index - 1].unary_end)'
        repeat: expr
        repeat-expr: shape.count
      rest_at:
        value: 'shape.count == 0 ? 0 : members[shape.count - 1].unary_end'
      rest:
        pos: 0
        type: bit(vector, 8 * first_byte + rest_at + _index)
        repeat: expr
        repeat-expr: 8 * shape.bytes - rest_at
        valid:
          expr: not _.is_set
        doc: Bits behind the last number.
    types:
      bit:
        params:
          - id: vector
            type: sparse_vector
          - id: at
            type: u2
            doc: Of all bits of the sets of the row.
        instances:
          is_set:
            value: ((vector.block.sets[at / 8][vector.row] >> (at % 8)) & 1) != 0
      member:
        params:
          - id: place
            type: u1
          - id: unary_at
            type: u2
        instances:
          set:
            value: _parent
          shape:
            value: set.shape
          unary:
            pos: 0
            type: bit(set.vector, 8 * set.first_byte + unary_at + _index)
            repeat: until
            repeat-until: _.is_set
            doc: Zeros, and a one.
          unary_end:
            value: unary_at + unary.size
          high:
            value: unary_end - 1 - shape.unary_at - place
          low_at:
            value: place * shape.low_bits
          low_byte:
            value: low_at / 8
          low_bytes:
            value: >-
              bytes[set.first_byte + low_byte][row]
              + (low_byte + 1 < shape.bytes ? bytes[set.first_byte + low_byte + 1][row] << 8 : 0)
              + (low_byte + 2 < shape.bytes ? bytes[set.first_byte + low_byte + 2][row] << 16 : 0)
          bytes:
            value: set.vector.block.sets
          row:
            value: set.vector.row
          number:
            value: (high << shape.low_bits) | ((low_bytes >> (low_at % 8)) & ((1 << shape.low_bits) - 1))

  step_fields:
    doc: Those of STEP, and of ROWS, which has more of them.
    doc-ref:
      - formats/record.md#step
      - formats/record.md#rows
    params:
      - id: is_rows
        type: bool
    seq:
      - id: codec
        type: u1
        enum: codec_id
        valid:
          expr: >-
            is_rows ? _.to_i >= 5 and _.to_i <= 7
            : _ == codec_id::raw or _ == codec_id::int8 or _ == codec_id::int4 or _ == codec_id::int2
      - id: streams
        type: u1
        doc: Bit i is set if stream i is in the record.
        valid:
          expr: _ != 0 and (_ & 0xe1) == 0
      - id: flags
        type: u2
        valid:
          expr: >-
            _ == 0 or codec.to_i <= 5 and _ == (codec == codec_id::raw ? 0 : codec.to_i == 5 ? 2 : 1)
      - id: first_layer
        type: u2
      - id: layers
        type: u2
        valid:
          min: 1
      - id: first_head
        type: u2
      - id: heads
        type: u2
        valid:
          min: 1
      - id: tokens
        type: u4
        valid:
          min: 1
      - id: first_token
        type: u8
        valid:
          expr: _ + tokens <= 0x1000000000000
      - id: all_heads
        type: u2
        valid:
          expr: first_head + heads <= _
      - id: group
        type: u2
        valid:
          expr: >-
            codec == codec_id::raw ? _ == 0
            : _ >= 16 and _ <= 4096
            and _ % (codec.to_i >= 5 ? 64 : 16) == 0
      - id: sparse
        type: sparse_fields(codec, flags)
        if: is_rows
      - id: reserved
        type: 'zeros(is_rows ? 11 : 4)'
    instances:
      is_symmetric:
        value: (flags & 1) != 0

  step_body:
    doc: |
      Coded rows are left as bytes, of which a user makes one `coded_row` after the other, or in a ROWS record one
      `sparse_row`, or `shaped_row`.
    doc-ref:
      - formats/raw.md#step
      - formats/rows.md
      - formats/record.md#rows
    params:
      - id: shape
        type: step_fields
    seq:
      - id: rows
        size-eos: true
        type:
          switch-on: shape.codec
          cases:
            'codec_id::raw': step_rows

  step_rows:
    doc: |
      For each layer, for each of its streams in the order of their ids, tokens x heads x dim numbers. The dim is that
      of the MODEL record which the SEQUENCE record of this sequence names, so here they are one list.
    doc-ref: formats/raw.md#step
    seq:
      - id: numbers
        type: u2
        repeat: eos

  coded_row:
    doc: |
      One head of one token in a STEP record whose codec is one of grouped integers; the next one follows at once, in
      the order that `step_rows` has. How many channels it has stands in the MODEL record: a user makes these, one
      after the other, of the bytes of `step_body.rows`. INT4 rows of `other_rows` are of this type too.
    doc-ref: formats/rows.md#a-row
    params:
      - id: codec
        type: u1
        enum: codec_id
      - id: group
        type: u2
      - id: is_symmetric
        type: bool
      - id: dim
        type: u2
    seq:
      - id: scales
        type: u2
        repeat: expr
        repeat-expr: groups
        valid:
          min: 0x80
          max: 0x7f7f
        doc: Bits of bfloat16, the upper half of a binary32.
      - id: zeros
        type: s2
        repeat: expr
        repeat-expr: 'is_symmetric ? 0 : groups'
        doc: In parts of a step.
      - id: codes
        type: u1
        repeat: expr
        repeat-expr: (dim + 15) / 16 * 16 * bits / 8
        doc: The first one of a byte in the lowest bits.
    instances:
      bits:
        value: 'codec == codec_id::int8 ? 8 : codec == codec_id::int4 ? 4 : 2'
        doc: Of a code.
      parts:
        value: 'bits == 8 ? 2 : 16'
        doc: Of a step, which zeros are counted in.
      groups:
        value: (dim + group - 1) / group
      channels:
        pos: 0
        type: channel(_index)
        repeat: expr
        repeat-expr: dim
        doc: The same once more by channel, without padding. A number is scale * (code + zero / parts).
    types:
      channel:
        params:
          - id: number
            type: u2
        instances:
          code:
            value: >-
              (_parent.codes[number * _parent.bits / 8] >> (number * _parent.bits % 8)) & ((1 << _parent.bits) - 1)
          scale:
            value: _parent.scales[number / _parent.group]
          zero:
            value: >-
              _parent.is_symmetric
              ? -_parent.parts * (1 << (_parent.bits - 1)) : _parent.zeros[number / _parent.group]

  dictionary_fields:
    doc-ref: formats/dictionary.md#dictionary-records
    seq:
      - id: basis_hash
        size: 16
        valid:
          expr: _.max != 0
      - id: parent_hash
        size: 16
        valid:
          expr: _ != basis_hash
        doc: Of the set that this one grew out of; zeros if it is whole.
      - id: atoms
        type: u4
        valid:
          min: 1
          max: 65536
      - id: first_atom
        type: u4
        valid:
          expr: not is_grown or _ >= 1
      - id: chunk
        type: u4
        valid:
          expr: _ >= 1 and first_atom + _ <= atoms
      - id: matrix
        type: u2
      - id: matrices
        type: u2
        valid:
          expr: matrix < _
      - id: head_dim
        type: u2
        valid:
          min: 1
          max: 1024
      - id: uses
        type: u2
        valid:
          min: 1
      - id: transform
        type: u1
        enum: transform
        valid:
          any-of:
            - transform::none
            - transform::pre_rope
      - id: mean
        type: u1
        valid:
          max: 1
      - id: pairs
        type: u2
        valid:
          expr: '(_ > 0) == (transform == transform::pre_rope) and 2 * _ <= head_dim'
      - id: reserved
        type: zeros(36)
      - id: codebooks
        type: u2
        valid:
          expr: not is_grown or _ == 0
      - id: grown
        type: u2
        valid:
          expr: 'is_grown ? _ >= 1 and _ <= matrices : _ == 0'
    instances:
      is_grown:
        value: parent_hash.max != 0

  dictionary_body:
    doc: |
      Uses, mean and steps stand in the record of the first atoms alone, of a set that grew in those of what it grew out
      of.
    doc-ref: formats/dictionary.md#dictionary-records
    params:
      - id: fields
        type: dictionary_fields
    seq:
      - id: uses
        type: dictionary_use
        repeat: expr
        repeat-expr: 'fields.first_atom == 0 ? fields.uses : 0'
      - id: mean
        type: f4
        repeat: expr
        repeat-expr: 'fields.first_atom == 0 and fields.mean == 1 ? fields.head_dim : 0'
      - id: steps
        type: u8
        repeat: expr
        repeat-expr: 'fields.first_atom == 0 ? fields.pairs : 0'
      - id: atoms
        type: atom
        size: fields.head_dim
        repeat: expr
        repeat-expr: fields.chunk
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0
    types:
      atom:
        instances:
          channels:
            pos: 0
            type: s1
            repeat: eos

  dictionary_use:
    doc-ref: formats/dictionary.md#dictionary-records
    seq:
      - id: layer
        type: u2
      - id: stream
        type: u1
        enum: stream_id
        valid:
          in-enum: true
      - id: reserved
        type: u1
        valid: 0

  codebook_fields:
    doc-ref: formats/record.md#codebook
    seq:
      - id: basis_hash
        size: 16
        valid:
          expr: _.max != 0
      - id: form
        type: u1
        enum: codebook_form
        valid:
          in-enum: true
      - id: reserved_form
        type: u1
        valid: 0
      - id: codebook
        type: u2
      - id: codebooks
        type: u2
        valid:
          expr: codebook < _
      - id: matrices
        type: u2
      - id: first_byte
        type: u4
      - id: all_bytes
        type: u4
        valid:
          expr: first_byte < _
      - id: reserved
        type: zeros(64)

  product:
    doc: |
      The bytes of a codebook of that form, of all its CODEBOOK records. `basis`, `prediction` and `books` are lists of
      rows, of so many channels or 256 centroids each.
    doc-ref: formats/product.md#bytes
    seq:
      - id: components
        type: u2
        valid:
          min: 1
          max: 512
      - id: head_dim
        type: u2
        valid:
          min: 1
          max: 1024
      - id: groups
        type: u2
        valid:
          min: 1
          max: 128
      - id: num_uses
        type: u2
        valid:
          min: 1
      - id: pairs
        type: u2
        valid:
          expr: 2 * _ <= head_dim
      - id: budget
        type: u2
        valid:
          max: 16000
        doc: In 1/16 bytes.
      - id: predicted
        type: u2
        valid:
          max: 512
      - id: reserved
        type: zeros(2)
      - id: uses
        type: dictionary_use
        repeat: expr
        repeat-expr: num_uses
      - id: steps
        type: u8
        repeat: expr
        repeat-expr: pairs
      - id: mean
        type: f4
        repeat: expr
        repeat-expr: head_dim
      - id: analysis
        size: 4 * (components + 1) * head_dim
        doc: This and the next two are for encoders.
      - id: units
        type: f4
        repeat: expr
        repeat-expr: components
      - id: spread
        type: f4
        repeat: expr
        repeat-expr: components
      - id: gains
        type: u2
        repeat: expr
        repeat-expr: 256
        doc: Bits of bfloat16.
      - id: shapes
        type: u2
        repeat: expr
        repeat-expr: 16
        doc: Bits of bfloat16.
      - id: ends
        type: u2
        repeat: expr
        repeat-expr: groups
      - id: basis
        type: basis_row
        repeat: expr
        repeat-expr: components
      - id: scales
        type: u2
        repeat: expr
        repeat-expr: 16
        if: predicted != 0
        doc: Bits of bfloat16, of the prediction.
      - id: prediction
        type: basis_row
        repeat: expr
        repeat-expr: predicted
      - id: books
        type: book
        size: 256
        repeat: expr
        repeat-expr: components
      - id: source
        size: 16
        if: predicted != 0
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0
    types:
      basis_row:
        seq:
          - id: channels
            type: s2
            repeat: expr
            repeat-expr: _parent.head_dim
            valid:
              min: -32767
      book:
        seq:
          - id: centroids
            type: s1
            repeat: eos

  trellis:
    doc: |
      The bytes of a codebook of that form. `basis` and `tables` are lists of rows, of so many channels or entries each;
      `tables` has one for each rate that a component has, ascending.
    doc-ref: formats/trellis.md#bytes
    seq:
      - id: components
        type: u2
        valid:
          min: 1
          max: 512
      - id: head_dim
        type: u2
        valid:
          min: 1
          max: 1024
      - id: num_uses
        type: u2
        valid:
          min: 1
      - id: pairs
        type: u2
        valid:
          expr: 2 * _ <= head_dim
      - id: budget
        type: u2
        valid:
          max: 16000
        doc: In 1/16 bytes.
      - id: window
        type: u1
        valid:
          min: 8
          max: 12
      - id: num_tables
        type: u1
        valid:
          min: 1
          max: 8
      - id: reserved
        type: zeros(4)
      - id: uses
        type: dictionary_use
        repeat: expr
        repeat-expr: num_uses
      - id: steps
        type: u8
        repeat: expr
        repeat-expr: pairs
      - id: mean
        type: f4
        repeat: expr
        repeat-expr: head_dim
      - id: analysis
        size: 4 * (components + 1) * head_dim
        doc: This and the next two are for encoders.
      - id: units
        type: f4
        repeat: expr
        repeat-expr: components
      - id: spread
        type: f4
        repeat: expr
        repeat-expr: components
      - id: gains
        type: u2
        repeat: expr
        repeat-expr: 256
        doc: Bits of bfloat16.
      - id: shapes
        type: u2
        repeat: expr
        repeat-expr: 16
        doc: Bits of bfloat16.
      - id: basis
        type: basis_row
        repeat: expr
        repeat-expr: components
      - id: tables
        type: table
        size: 2 << window
        repeat: expr
        repeat-expr: num_tables
      - id: rates
        type: u1
        repeat: expr
        repeat-expr: components
        valid:
          expr: '_ >= 1 and _ <= 8 and _ <= window - 3'
      - id: excess
        size-eos: true
        valid:
          expr: _.length == 0
    types:
      basis_row:
        seq:
          - id: channels
            type: s2
            repeat: expr
            repeat-expr: _parent.head_dim
            valid:
              min: -32767
      table:
        seq:
          - id: entries
            type: s2
            repeat: eos

  drop_fields:
    doc-ref: formats/record.md#drop
    seq:
      - id: first_token
        type: u8
        valid:
          max: 0x1000000000000
      - id: end_token
        type: u8
        valid:
          max: 0x1000000000000
      - id: scope
        type: u1
        enum: drop_scope
        valid:
          expr: >-
            _ == drop_scope::tail ? end_token == 0
            : _ == drop_scope::range or _ == drop_scope::summary ? first_token < end_token
            : _ == drop_scope::sequence and first_token == 0 and end_token == 0
      - id: reserved
        type: zeros(7)
      - id: summary_lsn
        type: u8
        valid:
          expr: 'scope == drop_scope::summary ? _ > 0 and _ < _parent.lsn : _ == 0'

  freed_fields:
    doc-ref: formats/record.md#freed
    seq:
      - id: runs
        type: u4
        valid:
          expr: _ >= 1 and _parent.body_bytes == 24 * _
      - id: reserved
        type: zeros(28)

  freed_body:
    params:
      - id: fields
        type: freed_fields
    seq:
      - id: runs
        type: freed_run
        repeat: expr
        repeat-expr: fields.runs

  freed_run:
    seq:
      - id: lane
        type: u4
        enum: lane
        valid:
          in-enum: true
      - id: reserved
        type: zeros(4)
      - id: first_frame
        type: u8
        valid:
          min: 1
      - id: frames
        type: u8
        valid:
          min: 1

  retired_fields:
    doc-ref: formats/record.md#retired
    seq:
      - id: blocks
        type: u4
        valid:
          expr: _ >= 1 and _parent.body_bytes == 8 * _
      - id: reserved
        type: zeros(28)

  retired_body:
    params:
      - id: fields
        type: retired_fields
    seq:
      - id: blocks
        type: retired_block
        repeat: expr
        repeat-expr: fields.blocks

  retired_block:
    seq:
      - id: block
        type: u4
      - id: cause
        type: u1
        enum: retire_cause
        valid:
          in-enum: true
      - id: reserved
        type: zeros(3)

  # -- sidecar ---------------------------------------------------------------------------------------------------

  sidecar:
    doc: The whole of a file `….kvlog.idx`.
    doc-ref: formats/sidecar.md
    seq:
      - id: header
        type: sidecar_header
        size: 64
      - id: lanes
        type: sidecar_lane
        size: 80
        repeat: expr
        repeat-expr: header.lanes
      - id: entries
        type: sidecar_entry
        size: 144
        repeat: expr
        repeat-expr: header.records

  sidecar_header:
    doc-ref: formats/sidecar.md#header
    seq:
      - id: magic
        contents: [0x89, 0x4b, 0x56, 0x49, 0x44, 0x58, 0x0d, 0x0a]
      - id: version
        type: u4
        valid: 1
      - id: records
        type: u4
      - id: uuid
        size: 16
      - id: lsn
        type: u8
      - id: body_crc
        type: u4
        doc: Of all that follows the header.
      - id: lanes
        type: u2
        valid: 2
      - id: reserved
        type: zeros(14)
      - id: crc
        type: u4
        doc: Of bytes 0 to 59.

  sidecar_lane:
    doc: Where a lane ends; all zeros of one without a frame.
    doc-ref: formats/sidecar.md#lane
    seq:
      - id: block
        type: u4
      - id: offset
        type: u4
      - id: generation
        type: u8
      - id: number
        type: u8
      - id: durable
        type: u8
      - id: framed_bytes
        type: u8
      - id: host_bytes
        type: u8
      - id: programmed_bytes
        type: u8
      - id: compacted_bytes
        type: u8
      - id: frames
        type: u8
      - id: frame_crc
        type: u4
      - id: drops
        type: u4

  sidecar_entry:
    doc-ref: formats/sidecar.md#entry
    seq:
      - id: generation
        type: u8
      - id: block
        type: u4
      - id: offset
        type: u4
      - id: header
        type: record_header
      - id: padding
        type: zeros(_io.size - _io.pos)

enums:
  frame_type:
    1: data
    2: compaction
  record_kind:
    1: model
    2: sequence
    3: group
    4: step
    5: dictionary
    6: drop
    7: rows
    8: codebook
    9: freed
    129: retired
  retire_cause:
    1: factory
    2: erase
    3: program
    4: read
  lane:
    0:
      id: fresh
      doc: What was appended.
    1:
      id: kept
      doc: Copies of what was worth keeping of erased blocks.
  drop_scope:
    0: tail
    1: range
    2: sequence
    3: summary
  codebook_form:
    1: product
    2: trellis
  stream_id:
    1: k
    2: v
    3: c
    4: kr
  codec_id:
    1: raw
    2: int8
    3: int4
    4: int2
    5:
      id: dictionary
      doc: This one and those behind it take what was trained.
    6: product
    7: trellis
  axis:
    0: none
    1: channel
    2: token
  row_kind:
    0: codes
    1: int4
    2: raw
  transform:
    0: none
    1: pre_rope
  dtype_id:
    1: bfloat16
    2: float16
  rope_layout:
    0: unknown
    1: halves
    2: interleaved
