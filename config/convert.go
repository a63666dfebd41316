package config

func convert(words []word) (int, string, bool) { return 0, "", false }
