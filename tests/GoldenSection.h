// Texts that are made from the code and kept: a part of a document, between two marker comments, or a file.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/File.h"

namespace ktune::test {

/// Expects the lines between "<!-- NAME: begin -->" and "<!-- NAME: end -->" of docs/PAGE to be TEXT. With
/// KTUNE_UPDATE_GOLDEN set it writes them instead.
inline void expectGoldenSection(const std::string& page, const std::string& name, const std::string& text) {
  const std::string path = std::string(KTUNE_SOURCE_DIR) + "/docs/" + page;
  Result<std::string> document = readFile(path);
  ASSERT_TRUE(document.has_value()) << document.error().message();
  const std::string begin = "<!-- " + name + ": begin -->\n", end = "<!-- " + name + ": end -->";
  size_t from = document->find(begin), to = document->find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos) << "docs/" << page << " lacks the markers " << name;
  from += begin.size();
  if (document->substr(from, to - from) == text) return;
  if (std::getenv("KTUNE_UPDATE_GOLDEN")) {
    ASSERT_TRUE(writeFileAtomically(path, document->substr(0, from) + text + document->substr(to)).isOk());
    return;
  }
  FAIL() << "docs/" << page << " does not show what the code says; run this test with KTUNE_UPDATE_GOLDEN=1";
}

/// Expects the file PATH of the source folder to be TEXT. With KTUNE_UPDATE_GOLDEN set it writes it instead.
inline void expectGoldenFile(const std::string& path, const std::string& text) {
  const std::string whole = std::string(KTUNE_SOURCE_DIR) + "/" + path;
  Result<std::string> kept = readFile(whole);
  if (kept && *kept == text) return;
  if (std::getenv("KTUNE_UPDATE_GOLDEN")) {
    ASSERT_TRUE(writeFileAtomically(whole, text).isOk());
    return;
  }
  ASSERT_TRUE(kept.has_value()) << kept.error().message() << "; run this test with KTUNE_UPDATE_GOLDEN=1";
  // The whole texts: gtest shows where they differ.
  EXPECT_EQ(*kept, text) << path << " is not what the code says; run this test with KTUNE_UPDATE_GOLDEN=1";
}

}  // namespace ktune::test
