"""The only rooms that know other libraries' insides. Nothing is imported here: each library is loaded when it is first used."""
