#include "worker/tokenizer/utf8.h"

namespace ibid {

Utf8Step NextCharacter(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8State::kWhole, 1, lead};
  size_t length;
  // The range of the second byte excludes overlong forms, surrogates and what is beyond U+10FFFF.
  uint8_t low = 0x80, high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {Utf8State::kInvalid, 1, 0};
  }
  uint32_t code_point = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8State::kIncomplete, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8State::kInvalid, i, 0};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
    low = 0x80;
    high = 0xbf;
  }
  return {Utf8State::kWhole, length, code_point};
}

size_t AppendAsUtf8(absl::string_view bytes, bool is_end, std::string* to) {
  while (!bytes.empty()) {
    const Utf8Step step = NextCharacter(bytes);
    if (step.state == Utf8State::kIncomplete && !is_end) return bytes.size();
    if (step.state == Utf8State::kWhole) {
      to->append(bytes.data(), step.bytes);
    } else {
      to->append("\xef\xbf\xbd");
    }
    bytes.remove_prefix(step.bytes);
  }
  return 0;
}

void AppendCodePoint(uint32_t code_point, std::string* to) {
  const auto add = [to](uint32_t byte) { to->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
    add(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    add(0xe0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  } else {
    add(0xf0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3f));
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  }
}

}  // namespace ibid
