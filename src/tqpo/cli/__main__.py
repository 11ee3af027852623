from tqpo.cli import main

main()
